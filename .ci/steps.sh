# Sourced by the scripts beside it: prints each step and, at the end, how long each took.
steps_took=""
step() {
    local start=$SECONDS
    printf '\n== %s (%s)\n' "$*" "$(date -u +%H:%M:%S)"
    "$@"
    steps_took+=$(printf '%6d s  %s' $((SECONDS - start)) "$*")$'\n'
}
