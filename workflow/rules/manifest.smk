# Ask ffprobe about each video of a shard: a row per video, accepted or rejected with a reason.
rule manifest:
    input:
        given("manifest", "deny_list"),
        plan=planned(".tsv"),
        settings="results/settings/manifest.json",
    output:
        "results/manifest/{shard}.parquet",
    log:
        "logs/manifest/{shard}.log",
    benchmark:
        "results/benchmarks/manifest/{shard}.tsv"
    conda:
        "../../environment.yml"
    resources:
        probe_workers=config["run"]["probe_workers"],
    params:
        version=2,
    shell:
        "logged {log} python -m pipeline.manifest --plan {input.plan}"
        " --settings {input.settings} --output {output} --workers {resources.probe_workers}"
