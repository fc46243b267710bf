# Helpers of the rules, and what is checked before any of them runs. No rules.
import csv
import difflib
import itertools
import json
import os
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

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


def check_config():
    """Refuse a config that the schema does not allow, in one line that names the key."""
    try:
        validate(config, "schemas/config.schema.yaml", set_default=False)
    except WorkflowError as error:
        raise WorkflowError(config_fault(error.__context__)) from None
    for key, what in (("videos", "the videos table"), ("captions", "the captions")):
        if not Path(config["plan"][key]).exists():
            raise WorkflowError(
                f"plan.{key} is {config['plan'][key]!r}, which does not exist in {Path.cwd()}: name"
                f" {what} there, as config/README.md says"
            )
    for key, file in named_files():
        if not Path(file).is_file():
            raise WorkflowError(
                f"{key} is {file!r}, and there is no such file in {Path.cwd()}: mend the"
                " path; config/README.md says what may stand there"
            )


def named_files():
    """The files that optional keys name: (key, path)."""
    keys = [
        ("manifest", "deny_list"),
        ("encode", "weights"),
        ("vocabulary", "word_list"),
        ("train", "word_vectors"),
        ("train", "word_list"),
        ("train", "init_from"),
        ("evaluate", "baseline_weights"),
        ("evaluate", "baseline_words"),
    ]
    for section, key in keys:
        for file in given(section, key):
            yield f"{section}.{key}", file
    for name, test in config["evaluate"]["protocols"].items():
        if test and test["clips"]:
            yield f"evaluate.protocols.{name}.clips", test["clips"]


def config_fault(fault):
    """One line for a jsonschema.ValidationError: the key, its value and what is allowed."""
    key = ".".join(map(str, fault.absolute_path))
    if fault.validator == "additionalProperties":
        allowed = sorted(fault.schema["properties"])
        unknown = sorted(set(fault.instance) - set(allowed))[0]
        where = f"the section {key!r}" if key else "the config"
        hint = did_you_mean(unknown, allowed)
        return (
            f"unknown key {unknown!r} in {where}: {hint}allowed: {', '.join(allowed)}"
        )
    if fault.validator == "required":
        missing = [name for name in fault.validator_value if name not in fault.instance]
        return f"the key {'.'.join(filter(None, [key, missing[0]]))!r} is missing from the config"
    if "propertyNames" in fault.absolute_schema_path:
        return f"{key} has the name {fault.instance!r}, allowed: a-z, 0-9, - and _"
    if fault.validator == "type" and fault.validator_value == "object":
        keys = ", ".join(sorted(fault.schema["properties"]))
        return (
            f"{key} is {fault.instance!r}, must be a section with keys below it: {keys}"
        )
    allowed = {
        "type": f"must be of type {fault.validator_value}",
        "enum": f"allowed: {fault.validator_value}",
        "minimum": f"must be at least {fault.validator_value}",
        "maximum": f"must be at most {fault.validator_value}",
        "exclusiveMinimum": f"must be above {fault.validator_value}",
        "exclusiveMaximum": f"must be below {fault.validator_value}",
    }.get(fault.validator, fault.message)
    if fault.validator == "enum":
        allowed = did_you_mean(fault.instance, fault.validator_value) + allowed
    if fault.validator == "type" and str(fault.instance)[:1].isdigit():
        allowed += " (YAML reads 1e-3 as text: write 1.0e-3; `--config` makes text: use a file)"
    return f"{key} is {fault.instance!r}, {allowed}"


def did_you_mean(word, allowed):
    """A question with the nearest allowed word, or nothing."""
    near = difflib.get_close_matches(str(word), map(str, allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def check_folders():
    """Refuse a results folder that nothing can be written to."""
    folder = Path("results") if Path("results").exists() else Path.cwd()
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise WorkflowError(
            f"{folder} is not a folder that can be written to: free it, or work elsewhere with"
            " `--directory DIR`"
        )


def section_text(wildcards):
    """A config section as canonical JSON."""
    return json.dumps(config[wildcards.section], sort_keys=True, ensure_ascii=False)


def section_package(wildcards):
    """The package whose stage reads a config section."""
    return "trainer" if wildcards.section in ("train", "evaluate") else "pipeline"


def listed_videos(at_most):
    """The paths of the videos table; none when it has more rows, or is a parquet file.

    Every job reads this file again, so a table of millions must not be read to its end.
    """
    table = Path(config["plan"]["videos"])
    if table.suffix == ".parquet":
        return []
    with open(table, newline="", encoding="utf-8-sig", errors="replace") as file:
        delimiter = max(",;\t", key=file.readline().count)
        file.seek(0)
        rows = csv.DictReader(file, delimiter=delimiter)
        try:
            rows = itertools.islice(rows, at_most + 1)
            paths = [row.get("path") or "" for row in rows]
        except csv.Error:  # the plan says what is wrong with the table
            return []
    return sorted(filter(None, set(paths))) if len(paths) <= at_most else []


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
    present = {path for path in listed_videos(limit) if Path(path).is_file()}
    files = sorted(present.union(demo_videos()))
    if captions.is_dir():
        found = (entry for entry in os.scandir(captions) if entry.is_file())
        texts = [entry.path for entry in itertools.islice(found, limit + 1)]
        files += sorted(texts) if len(texts) <= limit else []
    else:
        files.append(str(captions))
    return files


def planned_shards():
    """Names of all shards; not known while the plan itself has to run, and asked again after it."""
    shards = sorted(
        file.stem for file in Path(checkpoints.plan.get().output.plan).glob("*.tsv")
    )
    KNOWN_SHARDS.update(shards)
    return shards


def check_until():
    """Stop a run with `--until encode` that would leave out new shards and say nothing.

    Snakemake chooses the jobs of `--until` before it knows the shards of a new plan, and a job that
    nothing depends on any more is not run for a missing file.
    """
    for stage in set(workflow.dag_settings.until) & STAGE_FILES.keys():
        files = [STAGE_FILES[stage].format(shard=shard) for shard in KNOWN_SHARDS]
        if not files or not all(map(os.path.exists, files)):
            raise WorkflowError(
                f"`--until {stage}` would leave out shards that are new or lost: name the target"
                f" instead, as in `snakemake --cores N all_{stage}`"
            )


def check_nodes():
    """Stop before anything is encoded where training will ask for machines that nobody gives."""
    nodes = config["run"]["train"]["nodes"]
    if nodes == 1 or workflow.non_local_exec or os.getenv("SLURM_JOB_ID"):
        return
    if any(job.rule.name == "train" for job in workflow.dag.needrun_jobs()):
        raise WorkflowError(
            f"run.train.nodes is {nodes}, but this run stays on one machine: use `--profile"
            " workflow/profiles/slurm`, set run.train.nodes: 1, or run `all_bags` here and train by"
            " hand as config/README.md says"
        )


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


def test_lists(wildcards):
    """The list of a test's clips, if it names one."""
    keys = config["evaluate"]["protocols"].get(wildcards.protocol) or {}
    return [keys["clips"]] if keys.get("clips") else []


def planned(suffix):
    """An input function: the shard's list in the plan."""

    def path(wildcards):
        plan = checkpoints.plan.get().output.plan
        return f"{plan}/{wildcards.shard}{suffix}"

    return path


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
    if nodes == 1:
        return spread | ({"gpu": gpus} if gpus else {})
    # More than one node: Slurm starts one launcher on each, which needs `mpi`; `gpu` would be
    # turned into tasks per GPU.
    spread |= {"mpi": "srun", "nodes": nodes, "tasks": nodes}
    return spread | ({"gres": f"gpu:{gpus}", "tasks_per_gpu": 0} if gpus else {})
