#!/usr/bin/env bash
# Runs the soak of action.yml. Inputs arrive as environment variables, never as text of this script, so a value cannot become a command.
# Nor can one become an option, but in ARGS: each follows its own option's "=", and "--" ends the options before the URLs.
set -euo pipefail

refuse() {
    echo "$1" >&2
    printf '## asyncli soak\n\n    %s\n' "$1" >> "$GITHUB_STEP_SUMMARY"
    echo "verdict=" >> "$GITHUB_OUTPUT"
    exit 2
}

case "$RESULTS/" in */../*) refuse "artifact: a name cannot lead out of its folder; write one without '..'" ;; esac
mkdir -p "$RESULTS"
# All files in this folder are uploaded: what a killed soak needs to be resumed is not among them (SECURITY.md).
trap 'rm -f "$RESULTS"/.*.secrets' EXIT
words=()
[ -z "$PLAN" ] || words+=("--plan=$PLAN")
while IFS= read -r run; do [ -z "${run//[[:space:]]/}" ] || words+=("--baseline-run=$run"); done <<< "$BASELINE_RUN"
while IFS= read -r limit; do [ -z "${limit//[[:space:]]/}" ] || words+=("--fail-if=$limit"); done <<< "$FAIL_IF"
# xargs splits by a shell's quoting rules, but expands and runs nothing. It prints the words before an open quote: only its status tells.
while IFS= read -r -d '' word; do words+=("$word"); done < <(printf '%s' "$ARGS" | xargs -r printf '%s\0')
wait "$!" || refuse "args: a quote is not closed on its line, or a word is too long; quote as in a shell"
# shellcheck disable=SC2153
read -r -d '' -a urls <<< "$URLS" || true

# The report quotes texts of the server; none of its lines may be a command of the runner.
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "::stop-commands::$token"
status=0
# The log shows the progress as it comes, and the files get it apart from the report.
{
    "$ASYNCLI" soak "${words[@]}" --out="$RESULTS/run.db" --json="$RESULTS/run.json" --html="$RESULTS/report.html" \
        --junit="$RESULTS/junit.xml" -- "${urls[@]}" 2>&1 >&3 3>&- | tee "$RESULTS/errors.txt" >&2 3>&-
} 3>&1 | tee "$RESULTS/report.txt" || status=$?
echo "::$token::"
{
    if [ -s "$RESULTS/run.json" ]; then
        "$ASYNCLI" report "$RESULTS/run.db" --summary markdown
    else
        printf '## asyncli soak\n\n'
        tail -n 20 "$RESULTS/errors.txt" | sed 's/^/    /'
    fi
} >> "$GITHUB_STEP_SUMMARY"
verdict=$("${ASYNCLI%/*}/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["run"]["verdict"])' "$RESULTS/run.json" 2>/dev/null || true)
echo "verdict=$verdict" >> "$GITHUB_OUTPUT"
exit "$status"
