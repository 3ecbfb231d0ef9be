#!/bin/bash
# A Ray cluster for one SLURM job, and a study on it (docs/cluster.md):
#
#   sbatch --nodes=4 slurm.sh study.toml
#
# Start it in a folder that all nodes see, with a virtual environment .venv that has fedatlas[cluster].
#SBATCH --job-name=fedatlas
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=08:00:00
set -euo pipefail

# shellcheck disable=SC1091  # not there where this file is checked
source .venv/bin/activate
export RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
cores=${SLURM_CPUS_ON_NODE:?start this file with sbatch}
port=$((20000 + SLURM_JOB_ID % 10000))
address=$(srun --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" hostname --ip-address | awk '{print $1}')
how=(--num-cpus="$cores" --temp-dir="/tmp/ray-$SLURM_JOB_ID" --disable-usage-stats --block)

steps=()
trap 'kill "${steps[@]}" 2>/dev/null || true; wait' EXIT
srun --overlap --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" \
    ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false "${how[@]}" &
steps+=("$!")
for _ in $(seq 120); do
    if (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; then break; fi
    sleep 1
done
if ((${#hosts[@]} > 1)); then
    srun --overlap --nodes="$((${#hosts[@]} - 1))" --ntasks="$((${#hosts[@]} - 1))" --exclude="${hosts[0]}" \
        ray start --address="$address:$port" "${how[@]}" &
    steps+=("$!")
fi

# The first nodes are enough to begin: those that come later are given work, too.
fedatlas study "${1:?name a study file}" --cluster "$address:$port"
