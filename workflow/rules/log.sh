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

# shown FILE COMMAND: into the log and to the terminal as it comes. tee ignores the signals that stop
# the trainer, which still has a checkpoint to write and to tell of.
shown() {
    local log="$1"
    shift
    "$@" 2>&1 | (
        trap '' INT TERM USR1
        exec tee "$log"
    ) >&2
}
