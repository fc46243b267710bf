# Train on every bag with torchrun, on one machine or several. Checkpoints lie beside the outputs,
# undeclared: Snakemake deletes declared files before a job starts.
rule train:
    input:
        given("train", "init_from"),
        given("train", "word_vectors"),
        given("train", "word_list"),
        bags=each_shard("bags"),
        tars=each_shard("encode"),
        vocabulary="results/vocabulary.txt",
        settings="results/settings/train.json",
    output:
        model="results/train/model.pt",
        metrics="results/train/metrics.jsonl",
    log:
        "logs/train/train.log",
    benchmark:
        "results/benchmarks/train/train.tsv"
    conda:
        "../../environment.yml"
    threads: config["run"]["train"]["threads"]
    resources:
        **train_resources(),
    params:
        version=3,
    shell:
        "shown {log} python -m trainer.launch --nodes {resources.train_nodes}"
        " --processes {resources.train_processes_per_node} --threads {threads}"
        " --max-restarts {resources.train_max_restarts}"
        " {resources.train_network} -- -m trainer.train --settings {input.settings}"
        " --plan results/plan --bags results/bags --shards results/shards"
        " --vocabulary {input.vocabulary} --state results/train"
        " --output {output.model} --metrics {output.metrics}"
        " --backend {resources.train_backend} --workers {resources.train_workers}"
        " --chunk {resources.train_chunk}"
        " --bank-on-cpu {resources.train_bank_on_cpu}"
        " --bucket-cap-mb {resources.train_bucket_cap_mb}"
        " --gradient-as-bucket-view {resources.train_gradient_as_bucket_view}"
        " --find-unused-parameters {resources.train_find_unused_parameters}"
        " --save-every {resources.train_save_every}"
        " --keep-checkpoints {resources.train_keep_checkpoints}"
        " --verify-shards {resources.train_verify_shards}"
        " --log-every {resources.train_log_every}"
        " --validate-every {resources.train_validate_every}"
        " --timeout-seconds {resources.train_timeout_seconds}"
        " --stall-seconds {resources.train_stall_seconds}"
        " --anomaly {resources.train_anomaly} --profile {resources.train_profile}"
