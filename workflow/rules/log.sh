# Before each rule's command: where its words go.

# logged FILE COMMAND: into the log; the last line of a failed command, which says why, is shown too.
logged() {
    local log="$1"
    shift
    "$@" > "$log" 2>&1 || {
        local status=$?
        tail -n 1 "$log" >&2
        return $status
    }
}

# shown FILE COMMAND: to the terminal as it comes, into the log, and to the end of all-starts.log beside
# it: Snakemake removes the log of a job that starts again, and with it why the one before ended.
# tee ignores the signals that stop the trainer, which still has a checkpoint to write and to tell of.
shown() {
    local log="$1" all
    all="${log%/*}/all-starts.log"
    shift
    printf '==> %s on %s%s\n' "$(date '+%F %T')" "$(uname -n)" \
        "${SLURM_JOB_ID:+, Slurm job $SLURM_JOB_ID}" >> "$all"
    "$@" 2>&1 | (
        trap '' INT TERM USR1
        exec tee -a "$log" "$all"
    ) >&2
}
