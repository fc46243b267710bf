# What is checked before anything runs. Each fault is one line that names what to change. No rules.
import difflib

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate


def check_config():
    """Refuse a config that the schema does not allow, in one line that names the key."""
    try:
        validate(config, "schemas/config.schema.yaml", set_default=False)
    except WorkflowError as error:
        raise WorkflowError(config_fault(error.__context__)) from None
    for key, what in (("videos", "the videos table"), ("captions", "the captions")):
        if not os.path.exists(config["plan"][key]):
            raise WorkflowError(
                f"plan.{key} is {config['plan'][key]!r}, which does not exist in {Path.cwd()}: name"
                f" {what} there, as config/README.md says"
            )
    check_node_range(config["run"]["train"])
    if not os.path.isfile(config["plan"]["videos"]):
        raise WorkflowError(
            f"plan.videos is {config['plan']['videos']!r}, which is no file: make the table of a"
            " folder's videos with `python -m pipeline.tools.catalog`"
        )
    for key in ("videos", "captions"):
        check_path(f"plan.{key}", config["plan"][key])
    for key, file in named_files():
        check_file(key, file)


def check_path(key, path):
    """Refuse a path that Snakemake would take for another, or for many."""
    if found := SPECIAL.search(path):
        raise WorkflowError(
            f"{key} is {path!r}: Snakemake gives {found[0]!r} a meaning of its own; name a path"
            " without it, such as a link"
        )


def check_file(key, file):
    """Refuse a file that is not there."""
    check_path(key, file)
    if not os.path.isfile(file):
        raise WorkflowError(
            f"{key} is {file!r}, and there is no such file in {Path.cwd()}: mend the"
            " path; config/README.md says what may stand there"
        )


def check_node_range(run):
    """Refuse machines that come and go where the launcher would, after all else is done."""
    if not isinstance(run["nodes"], str):
        return
    fewest, most = map(int, run["nodes"].split(":"))
    if fewest > most:
        raise WorkflowError(
            f"run.train.nodes is {run['nodes']!r}, MIN:MAX with MIN above MAX: swap them"
        )
    if not run["max_restarts"]:
        raise WorkflowError(
            f"run.train.nodes is {run['nodes']!r} and run.train.max_restarts 0, must be at least 1:"
            " each machine that leaves uses up one on every other"
        )


def named_files():
    """The files that optional keys name, but for those of tests: (key, path)."""
    keys = [
        ("manifest", "deny_list"),
        ("encode", "weights"),
        ("vocabulary", "word_list"),
        ("train", "word_vectors"),
        ("train", "word_list"),
        ("train", "init_from"),
    ]
    for section, key in keys:
        for file in given(section, key):
            yield f"{section}.{key}", file


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
        "pattern": f"allowed: {fault.schema.get('description', fault.message)}",
        "anyOf": f"allowed: {fault.schema.get('description', fault.message)}",
    }.get(fault.validator, fault.message)
    if fault.validator == "enum":
        allowed = did_you_mean(fault.instance, fault.validator_value) + allowed
    if (
        fault.validator == "type"
        and isinstance(fault.instance, str)
        and fault.instance[:1].isdigit()
    ):
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
    slurm = workflow.non_local_exec or os.getenv("SLURM_JOB_ID")
    elastic = isinstance(nodes, str)
    if nodes == 1 or elastic != bool(slurm):
        return
    fault = (
        "Slurm gives a job its nodes once, and none comes or leaves: set a number, and a retry goes"
        " on where a node died"
        if elastic
        else "this run stays on one machine: use `--profile workflow/profiles/slurm`, set"
        " run.train.nodes: 1, or run `all_bags` here and train by hand as config/README.md says"
    )
    if any(job.rule.name == "train" for job in workflow.dag.needrun_jobs()):
        raise WorkflowError(f"run.train.nodes is {nodes}, but {fault}")
