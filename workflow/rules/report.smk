# One page about everything: videos, captions, features, bags, training, retrieval. What it says of
# machines comes as resources, for the page must not be made again because of them.
rule report:
    input:
        each_shard("manifest"),
        each_shard("encode"),
        each_shard("bags"),
        planned_file("unmatched.json"),
        "results/captions/summary.json",
        "results/rejected.csv",
        "results/train/metrics.jsonl",
        test_results,
        settings="results/settings/report.json",
    output:
        report(
            "results/report/index.html",
            caption="../report/page.rst",
            category="Summary",
        ),
    log:
        "logs/report/report.log",
    conda:
        "../../environment.yml"
    resources:
        trained_nodes=(
            0  # not known: machines came and went
            if isinstance(config["run"]["train"]["nodes"], str)
            else config["run"]["train"]["nodes"]
        ),
        trained_ranks=config["run"]["train"]["processes_per_node"],
        trained_gpus=config["run"]["train"]["gpus_per_node"],
    params:
        version=3,
    shell:
        "logged {log} python -m pipeline.report --results results"
        " --settings {input.settings} --nodes {resources.trained_nodes}"
        " --ranks {resources.trained_ranks} --gpus {resources.trained_gpus} --output {output}"
