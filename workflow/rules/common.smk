# Helpers of the rules. No rules.
import csv
import itertools
import json
import os
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(str(workflow.current_basedir)).resolve().parents[1]
# The working directory's own config, or the demo's where it has none (`--directory`).
CONFIG_FILE = next(
    str(file)
    for file in (Path("config/config.yaml"), ROOT / "config/config.yaml")
    if file.exists()
)
# What a stage makes of each shard, by rule.
STAGE_FILES = {
    "manifest": "results/manifest/{shard}.parquet",
    "captions": "results/captions/{shard}.parquet",
    "encode": "results/shards/{shard}.tar",
    "bags": "results/bags/{shard}.npz",
    "embeddings": "results/embeddings/{shard}.npy",
}
KNOWN_SHARDS = set()
# Snakemake takes {x} for a wildcard and <x> for a path of its own, and knows no way to say otherwise.
SPECIAL = re.compile(r"[{}]|<[a-z][a-z0-9_]*>")
DEMO_FOLDER = "results/demo"
DEMO_ROWS = 1000

# `python` is the interpreter that runs Snakemake, and it finds the packages from any directory.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.getenv("PATH", "")]),
    PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH", "")])),
)

# The rules' `logged` and `shown`.
shell.prefix(
    f"set -euo pipefail; source {shlex.quote(str(ROOT / 'workflow/rules/log.sh'))}; "
)


def section_text(wildcards):
    """A config section as canonical JSON."""
    return json.dumps(config[wildcards.section], sort_keys=True, ensure_ascii=False)


def section_package(wildcards):
    """The package whose stage reads a config section."""
    return "trainer" if wildcards.section in ("train", "evaluate") else "pipeline"


def listed_videos(at_most):
    """The paths of the videos table; none when it has more rows, or is a parquet file.

    Every job reads this file again, so a table of millions must not be read to its end. Parquet
    would take a library that this file has no use for.
    """
    table = Path(config["plan"]["videos"])
    if table.suffix == ".parquet":
        return []
    with open(table, newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            delimiter = table_delimiter(file.readline())
            file.seek(0)
            rows = csv.DictReader(file, delimiter=delimiter)
            rows = itertools.islice(rows, at_most + 1)
            paths = [row.get("path") or "" for row in rows]
        except csv.Error:  # the plan says what is wrong with the table
            return []
    return sorted(filter(None, set(paths))) if len(paths) <= at_most else []


def table_delimiter(header):
    """As the plan finds it (pipeline/formats/videos.py): the first that gives a column video_id."""
    for delimiter in ",;\t":
        if "video_id" in next(csv.reader([header], delimiter=delimiter), ()):
            return delimiter
    return ","


def demo_videos():
    """The paths of the table that lie in the folder of the demo, which is rendered."""
    return [
        path for path in listed_videos(DEMO_ROWS) if path.startswith(f"{DEMO_FOLDER}/")
    ]


def demo_script():
    """What to draw, beside the videos table."""
    return str(Path(config["plan"]["videos"]).with_name("steps.csv"))


def watched_files(wildcards):
    """Videos and caption files whose replacement the plan notices by itself."""
    limit = config["run"]["track_files_up_to"]
    captions = Path(config["plan"]["captions"])
    # The demo's also before they exist: with another set of inputs, the second run would plan again.
    # Path.is_file would end the run at a name that is too long or not permitted.
    present = {path for path in listed_videos(limit) if os.path.isfile(path)}
    files = sorted(present.union(demo_videos()))
    if captions.is_dir():
        found = (entry for entry in os.scandir(captions) if entry.is_file())
        texts = [entry.path for entry in itertools.islice(found, limit + 1)]
        files += sorted(texts) if len(texts) <= limit else []
    else:
        files.append(str(captions))
    return [file for file in files if not SPECIAL.search(file)]


def planned_shards():
    """Names of all shards; not known while the plan itself has to run, and asked again after it."""
    shards = sorted(
        file.stem for file in Path(checkpoints.plan.get().output.plan).glob("*.tsv")
    )
    KNOWN_SHARDS.update(shards)
    return shards


def each_shard(stage):
    """An input function: the stage's file of every shard."""
    return lambda wildcards: [
        STAGE_FILES[stage].format(shard=name) for name in planned_shards()
    ]


def protocols():
    """The names of the tests."""
    return sorted(
        name for name, keys in config["evaluate"]["protocols"].items() if keys
    )


def test_results(wildcards=None):
    """The result of every test."""
    return [f"results/evaluate/{name}.json" for name in protocols()]


def test_files(wildcards):
    """What a test's keys name. Looked for only here, for the stages before it need none of it."""
    keys = config["evaluate"]["protocols"].get(wildcards.protocol) or {}
    clips = [keys["clips"]] if keys.get("clips") else []
    named = [(f"evaluate.protocols.{wildcards.protocol}.clips", file) for file in clips]
    for key in ("baseline_weights", "baseline_words"):
        named += [(f"evaluate.{key}", file) for file in given("evaluate", key)]
    for key, file in named:
        check_file(key, file)
    return [file for _, file in named]


def planned(suffix):
    """An input function: the shard's list in the plan."""

    def path(wildcards):
        plan = checkpoints.plan.get().output.plan
        return f"{plan}/{wildcards.shard}{suffix}"

    return path


def planned_file(name):
    """An input function: a file of the plan that is of all shards."""
    return lambda wildcards: f"{checkpoints.plan.get().output.plan}/{name}"


def given(section, key):
    """The file that an optional key names, as a list of one or no input."""
    value = config[section][key]
    return [] if value in (None, "random") else [value]


def encode_flags():
    """Flags of an encode job. As a resource, for a changed parameter would encode again."""
    run = config["run"]["encode"]
    retry = run["retry"] if isinstance(run["retry"], str) else ",".join(run["retry"])
    names = (
        "video_timeout_seconds",
        "video_timeout_factor",
        "videos_per_worker",
        "decoder",
    )
    flags = [f"--{name.replace('_', '-')} {run[name]}" for name in names]
    return " ".join(
        [*flags, f"--retry {retry}", *(["--compile"] if run["compile"] else [])]
    )


def train_resources():
    """How training is spread. Resources, for a changed parameter would train again."""
    run = config["run"]["train"]
    nodes, gpus = run["nodes"], run["gpus_per_node"]
    interface = run["network_interface"]
    elsewhere = ("nodes", "gpus_per_node", "threads", "network_interface")
    spread = {f"train_{key}": run[key] for key in run if key not in elsewhere}
    for key, value in run.items():
        if isinstance(value, bool):
            spread[f"train_{key}"] = int(value)
    spread["train_profile"] = "{start}:{steps}".format(**run["profile"])
    spread["train_nodes"] = nodes
    spread["train_network"] = f"--network-interface {interface}" if interface else ""
    if nodes == 1 or isinstance(nodes, str):
        return spread | ({"gpu": gpus} if gpus else {})
    # More than one node: Slurm starts one launcher on each, which needs `mpi`; `gpu` would be
    # turned into tasks per GPU.
    spread |= {"mpi": "srun", "nodes": nodes, "tasks": nodes}
    return spread | ({"gres": f"gpu:{gpus}", "tasks_per_gpu": 0} if gpus else {})
