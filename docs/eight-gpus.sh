#!/usr/bin/env bash
# The whole of Kimi-K2.5's geometry on the GPUs of one host, predicted and measured: docs/eight-gpus.sh MOETWIN OUT
# With 8 GPUs all 61 layers, with 4 of them 30. Writes a trace and a comparison for every run under OUT and prints a short table last. About ten
# minutes on eight H200 by the times of two; no command may take longer than its limit, and a command that fails is named and passed over.
set -uo pipefail
moetwin=${1:?the moetwin binary} out=${2:?a folder for results}
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0
gpus=$(nvidia-smi -L | wc -l)
layers=61
[ "$gpus" -ge 8 ] || layers=30
table=$out/table.txt
printf '%-34s %10s %10s %10s\n' run "captured" "predicted" "error" > "$table"

step() { # NAME LIMIT COMMAND...
    local name=$1 limit=$2
    shift 2
    echo "[$SECONDS s] $name" >&2
    timeout -k 5 "$limit" "$@" > "$out/$name.txt" 2>&1 || { echo "$name: exit $?, see $out/$name.txt" | tee -a "$table" >&2; return 1; }
}

measured() { # NAME FLAGS...
    local name=$1
    shift
    step "run-$name" 90 "$moetwin" run --backend cuda --deadline 60 --synthetic --model kimi-k2.5 --layers "$layers" --max-tokens 24 --json \
        --trace "$out/$name.trace.json" "$@" || return
    # Predicted from the machine file alone: the routing that was seen decides bytes, nothing else of the run does.
    local how=()
    case $name in *one-shot*) how=(--allreduce one-shot) ;; esac
    step "compare-$name" 60 "$moetwin" compare --json --measured "$out/$name.trace.json" --machine "$out/calibrated.json" "${how[@]}" || return
    python3 - "$name" "$out/compare-$name.txt" >> "$table" <<'PY'
import json, sys
step = json.load(open(sys.argv[2]))["step"]
measured, predicted = step["measured_ms"], step["predicted_ms"]
print(f"{sys.argv[1]:34} {measured:10.3f} {predicted:10.3f} {(predicted / measured - 1) * 100:+9.1f} %")
PY
}

step doctor 90 "$moetwin" doctor
step detect 30 "$moetwin" machine detect --out "$out/detected.json"
# Both with peer access and without: what a PCIe box without peer-to-peer does.
step calibrate 180 "$moetwin" calibrate --model kimi-k2.5 --out "$out/calibrated.json"

for context in 128 4096; do
    for batch in 1 8 64; do
        at="b$batch-c$context"
        where=(--batch "$batch" --context "$context")
        measured "tp$gpus-$at" --tp "$gpus" "${where[@]}"
        measured "ep$gpus-$at" --tp "$gpus" --ep "$gpus" "${where[@]}"
        [ "$batch" -lt "$gpus" ] || measured "ep$gpus-dp$gpus-$at" --tp "$gpus" --dp-attention "$gpus" --ep "$gpus" --a2a nccl "${where[@]}"
    done
done
for batch in 1 8 64; do
    measured "tp$gpus-one-shot-b$batch" --tp "$gpus" --allreduce one-shot --batch "$batch" --context 128
    measured "tp$gpus-eager-b$batch" --tp "$gpus" --graphs off --batch "$batch" --context 128
    NCCL_P2P_DISABLE=1 measured "tp$gpus-host-b$batch" --tp "$gpus" --batch "$batch" --context 128
done
echo
cat "$table"
