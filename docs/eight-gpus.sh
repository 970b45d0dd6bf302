#!/usr/bin/env bash
# Kimi-K2.5's geometry on all GPUs of one host, predicted first and then measured: docs/eight-gpus.sh MOETWIN OUT
#
# Needs two GPUs or more of 80 GB or more, python3 for its tables, no network. Layers: 61 on eight GPUs, 30 on four, 8 on fewer, and no more than
# three quarters of the memory hold. In this order:
#   doctor, machine detect, calibrate           the machine file that everything is predicted from
#   predictions.txt                             every case below, before any of them is run
#   a run and a comparison for every case       traces and comparisons, one file each
#   table.txt                                   printed last
# Cases: TP, EP with replicated attention and EP with data-parallel attention at batch 1, 8, 64 (as far as every replica has a sequence) and context
# 128 and 4096; TP with sums by our one-shot kernel, without graphs, and without peer access at context 128. Steps are measured on a cache that
# no prompt filled: their times are the same, and prompts of 64 x 4096 tokens would take longer than everything else.
#
# BUDGET  seconds for everything, 1500 by default; a case is begun only while BUDGET minus the longest case so far is left
# SHORT=1 context 128 and batches 1 and 64 only, and one case at context 4096: four minutes on two H200
# LAYERS  layers instead of the above
# ROUTING how tokens choose experts, uniform by default, in predictions and runs alike: how many are hit decides what a step takes
# ONLY    cases whose names this extended regular expression finds
# MACHINE a machine file that calibrate wrote on this host with these versions, instead of calibrating (and of doctor and machine detect)
# A command that fails is named in the table and passed over; none may take longer than its limit.
set -uo pipefail
moetwin=${1:?usage: eight-gpus.sh MOETWIN OUT} out=${2:?usage: eight-gpus.sh MOETWIN OUT}
routing=${ROUTING:-uniform} budget=${BUDGET:-1500} short=${SHORT:-} model=kimi-k2.5
mkdir -p "$out"
# NVLS needs memory that some hosts do not lend to containers; NCCL hangs there instead of saying so.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
gpus=$(nvidia-smi -L | wc -l)
if [ "$gpus" -lt 2 ]; then
    echo "eight-gpus.sh: $gpus GPUs; two or more are needed" >&2
    exit 2
fi
memory_mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -1)
case $gpus in [23]) layers=8 ;; [4-7]) layers=30 ;; *) layers=61 ;; esac
table=$out/table.txt before=$out/predictions.txt failed=$out/failed.txt
: > "$failed"

step() { # NAME LIMIT COMMAND...: standard output to OUT/NAME.txt, the rest to OUT/NAME.log
    local name=$1 limit=$2
    shift 2
    echo "[$SECONDS s] $name" >&2
    timeout -k 5 "$limit" "$@" > "$out/$name.txt" 2> "$out/$name.log" || { echo "$name: exit $?, see $name.log" | tee -a "$failed" >&2; return 1; }
}

# What a layer of experts takes is what three layers take more than two (the first is dense), by the ledger of one rank that holds all of them.
weighed() { step "weighs-$1" 60 "$moetwin" sim --json --machine 8x-h200-sxm --model "$model" --tp 1 --layers "$1"; }
if [ -z "${LAYERS:-}" ]; then
    weighed 2 && weighed 3 || exit 3
    most=$(python3 - "$out" "$gpus" "$memory_mib" << 'PY'
import json, os, sys
out, gpus, memory_mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def held(layers):
    ranks = json.load(open(os.path.join(out, f"weighs-{layers}.txt")))["memory"]["per_rank"]
    return next(rank["total_gib"] for rank in ranks if rank["phase"] == "kv_alloc")
room = gpus * memory_mib / 1024 * 3 / 4
print(max(1, int(2 + (room - held(2)) / (held(3) - held(2)))))
PY
    ) || exit 3
    layers=$((layers < most ? layers : most))
fi
layers=${LAYERS:-$layers}

# NAME|environment|flags that sim, run and compare share|flags of run alone
cases=()
add() { [[ $1 =~ ${ONLY:-.} ]] && cases+=("$1|$2|$3|$4"); }
splits() { # BATCH CONTEXT
    local at="b$1-c$2" where="--batch $1 --context $2"
    add "tp$gpus-$at" "" "--tp $gpus $where --allreduce nccl" ""
    add "ep$gpus-$at" "" "--tp $gpus --ep $gpus $where --allreduce nccl" ""
    [ "$1" -lt "$gpus" ] || add "ep$gpus-dp$gpus-$at" "" "--tp $gpus --dp-attention $gpus --ep $gpus --a2a nccl $where --allreduce nccl" ""
}
variants() { # BATCH
    local where="--tp $gpus --batch $1 --context 128"
    add "tp$gpus-one-shot-b$1" "" "$where --allreduce one-shot" ""
    add "tp$gpus-eager-b$1" "" "$where --allreduce nccl --graphs off" ""
    add "tp$gpus-host-b$1" "NCCL_P2P_DISABLE=1" "$where --allreduce nccl" ""
}
if [ -n "$short" ]; then
    for batch in 1 64; do splits $batch 128; variants $batch; done
    splits 64 4096
else
    for batch in 1 8 64; do splits $batch 128; variants $batch; done
    for batch in 1 8 64; do splits $batch 4096; done
fi

if [ -n "${MACHINE:-}" ]; then
    cp "$MACHINE" "$out/calibrated.json" || exit 2
else
    step doctor 90 "$moetwin" doctor
    step detect 30 "$moetwin" machine detect --out "$out/detected.json"
    # Both with peer access and without: what a PCIe box without peer-to-peer does.
    step calibrate 240 "$moetwin" calibrate --model "$model" --splits "1,$gpus,ep$gpus" --contexts 128,1024,4096 \
        --budget "$((short ? 60 : 150))" --out "$out/calibrated.json" || exit 3
fi

{
    echo "Predicted $(date -u '+%Y-%m-%d %H:%M:%S') UTC, before any run: $layers layers of $model on $gpus GPUs, routing $routing, milliseconds a step"
    for case in "${cases[@]}"; do
        IFS='|' read -r name environment flags _ <<< "$case"
        p2p=()
        [ -z "$environment" ] || p2p=(--p2p off)
        # shellcheck disable=SC2086 # flags are words
        step "predicted-$name" 60 "$moetwin" sim --json --machine "$out/calibrated.json" --model "$model" --layers "$layers" \
            --routing "$routing" $flags "${p2p[@]}" || continue
        python3 -c 'import json, sys; print("%-24s %9.3f" % (sys.argv[1], json.load(open(sys.argv[2]))["step_ms"]))' "$name" "$out/predicted-$name.txt"
    done
} > "$before"
cat "$before" >&2

longest=0
for case in "${cases[@]}"; do
    IFS='|' read -r name environment flags _ <<< "$case"
    begin=$SECONDS
    if [ $((begin + longest)) -gt "$budget" ]; then
        echo "$name: left out, $budget seconds are over" >> "$failed"
        continue
    fi
    # shellcheck disable=SC2086 # flags are words
    step "run-$name" 120 env $environment "$moetwin" run --backend cuda --deadline 60 --synthetic --no-prompt --model "$model" --layers "$layers" \
        --routing "$routing" $flags --json --trace "$out/$name.trace.json" || continue
    # What a comparison cannot read from the trace.
    how=()
    case $name in *one-shot*) how=(--allreduce one-shot) ;; esac
    step "compare-$name" 60 "$moetwin" compare --json --measured "$out/$name.trace.json" --machine "$out/calibrated.json" "${how[@]}"
    took=$((SECONDS - begin))
    longest=$((took > longest ? took : longest))
done

python3 - "$out" "$gpus" "$layers" > "$table" << 'PY'
import json, os, sys
out, gpus, layers = sys.argv[1:]
print(f"{layers} layers of Kimi-K2.5 on {gpus} GPUs, milliseconds a step. `before` was predicted before the run with drawn routing, `predicted` with the")
print("experts that were chosen; exchanges are of a rank: how many, microseconds of transfer (predicted), and of waiting for the last rank.")
print(f"{'case':24} {'measured':>9} {'before':>9} {'error':>7} {'predicted':>9} {'error':>7} {'commands':>8} {'experts':>7} {'calls':>5} {'transfer':>9} {'(pred)':>9} {'waiting':>8}")
exchanges = {"all_reduce", "gather_scatter", "all_to_all", "send_recv"}
for line in open(os.path.join(out, "predictions.txt")).read().splitlines()[1:]:
    name, before = line.split()
    try:
        found = json.load(open(os.path.join(out, f"compare-{name}.txt")))
    except (OSError, ValueError):
        continue
    step, before = found["step"], float(before)
    classes = [c for c in found["classes"] if c["class"] in exchanges]
    total = lambda key: sum(key(c) for c in classes)
    measured = step["measured_ms"]
    off = lambda ms: f"{(ms / measured - 1) * 100:+6.1f}%"
    print(f"{name:24} {measured:9.3f} {before:9.3f} {off(before)} {step['predicted_ms']:9.3f} {off(step['predicted_ms'])} "
          f"{step['median_error'] * 100:7.1f}% {found['distinct_experts'] or 0:7.1f} {total(lambda c: c['calls']):5.0f} {total(lambda c: c['measured_us']):9.1f} "
          f"{total(lambda c: c['predicted_us']):9.1f} {total(lambda c: c['waiting_us'][1]):8.1f}")
PY
cat "$failed" >> "$table"
echo "$SECONDS s" >> "$table"
cat "$table"
