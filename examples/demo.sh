#!/usr/bin/env bash
# The demo: learn what is normal from three good training scripts, then check five scripts that were not learned from,
# and verify the gradients of another. Five of these six have a silent error, one is clean. Called by `make demo`; needs `traincheck` on PATH.
set -uo pipefail
cd "$(dirname "$0")/.."

runs=traincheck-runs/demo
made_here=$runs/.made-by-demo
wrong=0

if [[ -e $made_here ]]; then
    rm -rf "$runs"
elif [[ -e $runs ]]; then
    echo "$runs exists and was not made by this script; move it away first" >&2
    exit 1
fi
mkdir -p "$runs/logs"
touch "$made_here"

# expect CODE LOG COMMAND...: show the command, run it, and see that it ends with CODE. The program's own output goes
# to LOG; what TrainCheck says comes on stderr and is shown.
expect() {
    local code=$1 log=$2 got=0
    shift 2
    printf '\n$ %s\n' "$*"
    "$@" >"$log" || got=$?
    if [[ $got -ne $code ]]; then
        printf '*** this ended with exit code %s, expected %s; the output of the program is in %s\n' "$got" "$code" "$log"
        wrong=$((wrong + 1))
    fi
}

echo "== 1. Record good runs"
# They need nothing but torch and numpy, so that the demo installs little.
good=(segmentation_unet wind_power_amp resume_training)
for name in "${good[@]}"; do
    expect 0 "$runs/logs/$name.txt" traincheck collect -o "$runs/$name" "examples/$name.py"
done

echo
echo "== 2. Learn a book of invariants from them"
expect 0 "$runs/logs/infer.txt" traincheck infer "${good[@]/#/$runs/}" -o "$runs/good.jsonl"

echo
echo "== 3. Check other scripts while they train"
buggy=(frozen_head missing_zero_grad stale_optimizer eval_never_left)
clean=missing_zero_grad_clean
for name in "${buggy[@]}"; do
    expect 3 "$runs/logs/$name.txt" traincheck run --book "$runs/good.jsonl" -o "$runs/$name" "examples/buggy/$name.py"
done
expect 0 "$runs/logs/$clean.txt" traincheck run --book "$runs/good.jsonl" -o "$runs/$clean" "examples/buggy/$clean.py"

echo
echo "== 4. Verify a few steps of another script: every update and gradient is computed in a second way, without rules"
verified=broadcast_backward
expect 3 "$runs/logs/$verified.txt" traincheck verify --steps 5 -o "$runs/$verified" "examples/buggy/$verified.py"

echo
echo "== Summary"
for name in "${buggy[@]}" "$clean" "$verified"; do
    [[ -e $runs/$name/report.html ]] && printf '  %-24s %s\n' "$name" "$runs/$name/report.html"
done
if [[ $wrong -gt 0 ]]; then
    echo "$wrong of $((${#good[@]} + ${#buggy[@]} + 3)) commands did not end as expected; see above" >&2
    exit 1
fi
echo "Five silent errors were found, and the clean script passed. Open a report in a browser; read the book with"
echo "  .venv/bin/traincheck show $runs/good.jsonl"
