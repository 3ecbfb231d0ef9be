/* Matrix products and row reductions of a small dense network, for one thread; REAL is float or double.

   Every size and stride is a constant where these functions are called, so the compiler makes one version for each layer.
   Tiles of five rows by two columns keep all their sums in registers on a machine with 16 of them. */

#include <stdint.h>
#include <tgmath.h>
#undef I /* of complex numbers */

#ifdef __AVX512F__
enum { WIDTH = 64 };
#else
enum { WIDTH = 32 };
#endif
typedef REAL real;
enum { LANES = WIDTH / sizeof(real) };
typedef real lanes __attribute__((vector_size(WIDTH), aligned(sizeof(real))));

#define INLINE static inline __attribute__((always_inline))
#define EACH _Pragma("GCC unroll 16") for

INLINE lanes load(const real *p) { return *(const lanes *)p; }
INLINE void store(real *p, lanes v) { *(lanes *)p = v; }
INLINE real total(lanes v) {
  real sum = 0;
  EACH (int i = 0; i < LANES; i++) sum += v[i];
  return sum;
}

/* out[r][c] = sum_k A[r, k] B[c, k]: both operands run along k */
#define DOTS(R, C)                                                                                          \
  INLINE void dots_##R##x##C(long K, const real *A, long ai, const real *B, long bj, real out[R][C]) {   \
    lanes sum[R][C];                                                                                        \
    EACH (int r = 0; r < R; r++) EACH (int c = 0; c < C; c++) sum[r][c] = (lanes){0};                       \
    long k = 0;                                                                                             \
    for (; k + LANES <= K; k += LANES) {                                                                    \
      lanes a[R];                                                                                           \
      EACH (int r = 0; r < R; r++) a[r] = load(A + r * ai + k);                                             \
      EACH (int c = 0; c < C; c++) {                                                                        \
        lanes b = load(B + c * bj + k);                                                                     \
        EACH (int r = 0; r < R; r++) sum[r][c] += a[r] * b;                                                 \
      }                                                                                                     \
    }                                                                                                       \
    EACH (int r = 0; r < R; r++) EACH (int c = 0; c < C; c++) {                                             \
      out[r][c] = total(sum[r][c]);                                                                         \
      for (long q = k; q < K; q++) out[r][c] += A[r * ai + q] * B[c * bj + q];                              \
    }                                                                                                       \
  }

/* out <- own * out + other * Z + alpha * sum_k A[r, k] B[k, :] on C vectors of columns: B, Z and out run along the columns */
#define OUTER(R, C)                                                                                         \
  INLINE void outer_##R##x##C(long K, real *out, long oi, const real *A, long ai, long ak,                \
                              const real *B, long bk, const real *Z, long zi, real own, real other,     \
                              real alpha) {                                                                \
    lanes sum[R][C];                                                                                        \
    EACH (int r = 0; r < R; r++) EACH (int c = 0; c < C; c++) sum[r][c] = (lanes){0};                       \
    for (long k = 0; k < K; k++) {                                                                          \
      lanes b[C];                                                                                           \
      EACH (int c = 0; c < C; c++) b[c] = load(B + k * bk + c * LANES);                                     \
      EACH (int r = 0; r < R; r++) {                                                                        \
        real a = A[r * ai + k * ak];                                                                       \
        EACH (int c = 0; c < C; c++) sum[r][c] += a * b[c];                                                 \
      }                                                                                                     \
    }                                                                                                       \
    EACH (int r = 0; r < R; r++) EACH (int c = 0; c < C; c++) {                                             \
      real *at = out + r * oi + c * LANES;                                                                 \
      lanes value = alpha * sum[r][c];                                                                      \
      if (own != 0) value += own * load(at);                                                                \
      if (Z) value += other * load(Z + r * zi + c * LANES);                                                 \
      store(at, value);                                                                                     \
    }                                                                                                       \
  }

DOTS(5, 2) DOTS(5, 1) DOTS(1, 2) DOTS(1, 1)
OUTER(5, 2) OUTER(5, 1) OUTER(1, 2) OUTER(1, 1)

/* out[i, j] = beta * Z[i, j] + alpha * sum_k A[i, k] B[j, k] */
INLINE void product_dots(long I, long J, long K, real *out, long oi, long oj, const real *A, long ai,
                         const real *B, long bj, const real *Z, long zi, long zj, real beta, real alpha) {
#define TILE(R, C)                                                                                          \
  {                                                                                                         \
    real found[R][C];                                                                                      \
    dots_##R##x##C(K, A + i * ai, ai, B + j * bj, bj, found);                                               \
    EACH (int r = 0; r < R; r++) EACH (int c = 0; c < C; c++)                                               \
      out[(i + r) * oi + (j + c) * oj] =                                                                    \
        (Z ? beta * Z[(i + r) * zi + (j + c) * zj] : 0) + alpha * found[r][c];                              \
  }
  long j = 0;
  for (; j + 2 <= J; j += 2) {
    long i = 0;
    for (; i + 5 <= I; i += 5) TILE(5, 2)
    for (; i < I; i++) TILE(1, 2)
  }
  for (; j < J; j++) {
    long i = 0;
    for (; i + 5 <= I; i += 5) TILE(5, 1)
    for (; i < I; i++) TILE(1, 1)
  }
#undef TILE
}

/* out <- own * out + other * Z + alpha * A B, where B, Z and out run along the columns; own = 0 reads nothing of out */
INLINE void product_outer(long I, long J, long K, real *out, long oi, const real *A, long ai, long ak,
                          const real *B, long bk, const real *Z, long zi, real own, real other, real alpha) {
#define TILE(R, C)                                                                                          \
  outer_##R##x##C(K, out + i * oi + j, oi, A + i * ai, ai, ak, B + j, bk, Z ? Z + i * zi + j : Z, zi, own,  \
                  other, alpha)
#define ROWS(R)                                                                                             \
  {                                                                                                         \
    long j = 0;                                                                                             \
    for (; j + 2 * LANES <= J; j += 2 * LANES) TILE(R, 2);                                                  \
    for (; j + LANES <= J; j += LANES) TILE(R, 1);                                                          \
    for (; j < J; j++)                                                                                      \
      for (long r = i; r < i + R; r++) {                                                                    \
        real sum = 0;                                                                                      \
        for (long k = 0; k < K; k++) sum += A[r * ai + k * ak] * B[k * bk + j];                             \
        out[r * oi + j] = (own != 0 ? own * out[r * oi + j] : 0) + (Z ? other * Z[r * zi + j] : 0) +        \
                          alpha * sum;                                                                      \
      }                                                                                                     \
  }
  long i = 0;
  for (; i + 5 <= I; i += 5) ROWS(5)
  for (; i < I; i++) ROWS(1)
#undef ROWS
#undef TILE
}

/* log-softmax of each of I rows of J numbers */
INLINE void log_softmax(long I, long J, real *out, long oi, const real *A, long ai) {
  for (long i = 0; i < I; i++) {
    const real *a = A + i * ai;
    real top = a[0], sum = 0;
    for (long j = 1; j < J; j++) top = a[j] > top || a[j] != a[j] ? a[j] : top;
    for (long j = 0; j < J; j++) sum += exp(a[j] - top);
    real shift = top + log(sum);
    for (long j = 0; j < J; j++) out[i * oi + j] = a[j] - shift;
  }
}

/* mean of -A[i, y[i]] over the rows whose class is not ``ignore``; NaN where one is none of the J classes */
INLINE real nll(long I, long J, const real *A, long ai, long aj, const int64_t *y, long yi, int64_t ignore) {
  real sum = 0, count = 0;
  for (long i = 0; i < I; i++) {
    if (y[i * yi] == ignore) continue;
    if (y[i * yi] < 0 || y[i * yi] >= J) return NAN;
    sum -= A[i * ai + y[i * yi] * aj];
    count += 1;
  }
  return sum / count;
}
