#!/usr/bin/env bash
# The experiment of docs/results.md, step by step. Every step goes on where it stopped when it is given again.
#
#   benchmarks/experiment.sh start METHOD        6,000 tasks on COCO's classes that VOC does not have: no fold tests them
#   benchmarks/experiment.sh fold METHOD FOLD    4,000 more with VOC's train photos, without the fold's classes
#   benchmarks/experiment.sh tune METHOD FOLD    thresholds of that head, on the train photos of classes it was trained on
#   benchmarks/experiment.sh eval METHOD FOLD    all that the tables need of that head, on the val photos
#   benchmarks/experiment.sh tuned METHOD FOLD   the three settings once more, at the thresholds of `tune`
#   benchmarks/experiment.sh default             like a fold, without leaving classes out (the bundled head is another: emat/heads/default.md)
#   benchmarks/experiment.sh all                 everything, one after the other
#
# VOC and COCO name the two data sets; TASKS the evaluation tasks of a fold. Steps of different methods and folds do not
# depend on each other: with OMP_NUM_THREADS=1 as many run side by side as there are cores.
set -euo pipefail
: "${VOC:?folder of VOC 2012}" "${COCO:?folder of COCO 2017}"
RUNS=${RUNS:-runs/experiment}
TASKS=${TASKS:-500}
TRAIN=$VOC/ImageSets/Segmentation/train.txt
VAL=$VOC/ImageSets/Segmentation/val.txt
BACKBONE=efficientnet-lite2
RECIPE=(--backbone $BACKBONE --size 256 --tasks-per-epoch 1000 --batch 8 --lr 0.002 --clip-grad 1 --presence-weight 0.25
        --mask-size 64 --flip --cache "$RUNS/features")
VOC_CLASSES=(aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant
             sheep sofa train tvmonitor)

train() { # folder, options
  local out=$1
  shift
  emat train "${RECIPE[@]}" "$@" --out "$out" $([ -f "$out/state.pt" ] && echo --resume)
}

start() {
  train "$RUNS/start-$1" --method "$1" --data "$COCO" "${VOC_CLASSES[@]/#/--exclude-classes=}" \
    --val-data "$VOC" --val-names "$TRAIN" --val-tasks 200 --max-tasks 6000 \
    --schedule constant --warmup 100 --ema 0.99 --foreground-weight 2 --positive 0.6
}

# From the head of `start` on. No validation: its tasks would be the test's.
go_on() { # method, folder, options
  local method=$1 out=$2
  shift 2
  train "$out" --method "$method" --start-from "$RUNS/start-$method/last.safetensors" --data "$VOC" --names "$TRAIN" \
    --data "$COCO" --val-tasks 0 --max-tasks 4000 --schedule cosine --warmup 20 --ema 0.995 --foreground-weight 5 \
    --positive 0.5 --queries listed "$@"
}

fold() { go_on "$1" "$RUNS/$1-fold$2" --fold "$2"; }

default() { go_on emat "$RUNS/default"; }

tune() {
  emat tune "$RUNS/$1-fold$2/last.safetensors" --data "$VOC" --names "$TRAIN" --tasks 150 --cache "$RUNS/features" \
    -o "$RUNS/$1-fold$2-tuned.safetensors"
}

evaluate() { # method, fold
  local which=(--model "$RUNS/$1-fold$2/last.safetensors") results=$RUNS/results/$1-fold$2
  if [ "$1" = prototype ]; then which=(--method prototype --size 256); fi
  local common=(--data "$VOC" --names "$VAL" --fold "$2" --cache "$RUNS/features")
  emat eval "${which[@]}" "${common[@]}" --tasks "$TASKS" --way 2 --setting all -o "$results-settings.json"
  emat eval "${which[@]}" "${common[@]}" --size-split 0-5,5-10,10-15 -o "$results-sizes.json"
  emat eval "${which[@]}" "${common[@]}" --tasks "$TASKS" --query-has-class -o "$results-has-class.json"
}

tuned() {
  emat eval --model "$RUNS/$1-fold$2-tuned.safetensors" --data "$VOC" --names "$VAL" --fold "$2" --tasks "$TASKS" \
    --way 2 --setting all --threshold own --cache "$RUNS/features" -o "$RUNS/results/$1-fold$2-tuned.json"
}

case ${1:-} in
  start) start "$2" ;;
  fold) fold "$2" "$3" ;;
  tune) tune "$2" "$3" ;;
  eval) evaluate "$2" "$3" ;;
  tuned) tuned "$2" "$3" ;;
  default) default ;;
  all)
    for method in emat cst emat-me-ld; do start "$method"; done
    for method in emat cst; do
      for number in 0 1 2 3; do
        fold "$method" $number
        tune "$method" $number
        evaluate "$method" $number
        tuned "$method" $number
      done
    done
    fold emat-me-ld 0
    tune emat-me-ld 0
    evaluate emat-me-ld 0
    tuned emat-me-ld 0
    for number in 0 1 2 3; do evaluate prototype $number; done
    default
    ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 2 ;;
esac
