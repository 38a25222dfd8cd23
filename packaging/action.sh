#!/usr/bin/env bash
# Runs the soak of action.yml. Inputs arrive as environment variables, never as text of this script, so a value cannot become a command.
set -euo pipefail
mkdir -p "$RESULTS"
words=()
[ -z "$PLAN" ] || words+=(--plan "$PLAN")
while IFS= read -r limit; do [ -z "${limit//[[:space:]]/}" ] || words+=(--fail-if "$limit"); done <<< "$FAIL_IF"
# xargs splits by a shell's quoting rules, but expands and runs nothing.
while IFS= read -r -d '' word; do words+=("$word"); done < <(printf '%s' "$ARGS" | xargs -r printf '%s\0')
# shellcheck disable=SC2153
read -r -d '' -a urls <<< "$URLS" || true

status=0
"$ASYNCLI" soak "${words[@]}" --out "$RESULTS/run.db" --json "$RESULTS/run.json" --html "$RESULTS/report.html" --junit "$RESULTS/junit.xml" \
    "${urls[@]}" 2> "$RESULTS/errors.txt" | tee "$RESULTS/report.txt" || status=$?
cat "$RESULTS/errors.txt" >&2
{
    echo '## asyncli soak'
    echo '~~~~text'
    if [ -s "$RESULTS/run.json" ]; then "$ASYNCLI" report "$RESULTS/run.db"; else tail -n 20 "$RESULTS/errors.txt"; fi
    echo '~~~~'
} >> "$GITHUB_STEP_SUMMARY"
verdict=$("${ASYNCLI%/*}/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["run"]["verdict"])' "$RESULTS/run.json" 2>/dev/null || true)
echo "verdict=$verdict" >> "$GITHUB_OUTPUT"
exit "$status"
