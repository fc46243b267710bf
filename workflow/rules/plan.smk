# List what each shard holds: the one checkpoint. A list that comes out as it was re-runs nothing.
checkpoint plan:
    input:
        watched_files,
        videos=config["plan"]["videos"],
        settings="results/settings/plan.json",
    output:
        plan=directory("results/plan"),
    log:
        "logs/plan/plan.log",
    benchmark:
        "results/benchmarks/plan/plan.tsv"
    conda:
        "../../environment.yml"
    resources:
        plan_reorder="--allow-reorder" if config["run"]["allow_reorder"] else "",
    params:
        version=2,
    shell:
        "logged {log} python -m pipeline.plan --settings {input.settings} --output {output.plan}"
        " --parts results/captions/parts --order results/.plan/order.txt {resources.plan_reorder}"
