# One page about everything: videos, captions, features, bags, training, retrieval.
rule report:
    input:
        each_shard("manifest"),
        each_shard("encode"),
        each_shard("bags"),
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
    params:
        version=1,
    shell:
        "logged {log} python -m pipeline.report --results results"
        " --settings {input.settings} --output {output}"
