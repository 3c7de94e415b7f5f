#!/usr/bin/env bash
# The experiment of docs/results.md, step by step. Every step goes on where it stopped when it is given again.
#
#   benchmarks/experiment.sh train METHOD FOLD   train emat, cst, emat-s or emat-me-ld without the fold's classes
#   benchmarks/experiment.sh further METHOD FOLD train that head on FURTHER more tasks, with a new cosine
#   benchmarks/experiment.sh longer METHOD FOLD  and that one on LONGER other tasks, with a new cosine again
#   benchmarks/experiment.sh stack FOLD          and that one, for EMAT, on STACK other tasks with MobileSAM's channels beside
#                                                EfficientNet-Lite2's; FOLD may be "default", for the bundled head
#   benchmarks/experiment.sh default             the first two steps without leaving classes out: the bundled head
#   benchmarks/experiment.sh eval METHOD FOLD    evaluate emat, emat-prior, cst, emat-me-ld or prototype: three settings, 2-way 1-shot
#   benchmarks/experiment.sh sizes METHOD        evaluate by object size: four folds, 1-way 1-shot
#   benchmarks/experiment.sh ways METHOD         1- to 5-way 5-shot, fully augmented, 200 tasks of each of four folds
#   benchmarks/experiment.sh segment METHOD FOLD 1-way 1- and 5-shot where the query shows the class, for emat and emat-s
#   benchmarks/experiment.sh older METHOD SIZE   hsnet, asnet or pfenet on ResNet-50: train and evaluate on fold 0
#   benchmarks/experiment.sh all                 everything, one after the other
#
# PASCAL names the photos of PASCAL-5i, MASKS their masks (a folder or zip), LISTS the fold lists, COCO a COCO data set.
# TRAINING, FURTHER, LONGER and STACK are the numbers of training tasks of the steps, OLDER and OLDER_FURTHER those of `older`,
# BATCH the tasks in one of its updates, TASKS that of the evaluation tasks of a fold. STEP=longer or STEP=stack evaluates the heads of that step, instead of those of `further`.
set -euo pipefail
: "${PASCAL:?folder of PASCAL photos}" "${MASKS:?masks of these photos}" "${LISTS:?fold lists}" "${COCO:?folder of COCO}"
RUNS=${RUNS:-runs/experiment}
TRAINING=${TRAINING:-6000}
FURTHER=${FURTHER:-10000}
LONGER=${LONGER:-16000}
STACK=${STACK:-6000}
STEP=${STEP:-further}
NAME=${STEP#further}  # results of the step longer begin with its name
NAME=${NAME:+$NAME-}
TASKS=${TASKS:-1000}
DATA=(--dataset pascal --data "$PASCAL" --masks "$MASKS" --lists "$LISTS")

train() { # method, folder, tasks, options
  local method=$1 out=$2 tasks=$3
  shift 3
  emat train --method "$method" --support-grid 12 --size 256 "${DATA[@]}" --data "$COCO" --max-tasks "$tasks" \
    --tasks-per-epoch 2000 --batch 8 --lr 0.002 --schedule cosine --warmup 50 --ema 0.995 --clip-grad 1 \
    --presence-weight 0.25 --foreground-weight 3 --mask-size 64 --positive 0.5 --queries listed --flip --val-tasks 0 \
    --cache-float16 --cache "$RUNS/features" "$@" --out "$out" $([ -f "$out/state.pt" ] && echo --resume)
}

evaluate() { # method, fold
  local which=(--model "$RUNS/$STEP-${1%-prior}-fold$2/last.safetensors" --method "$1" --size 384) name=$NAME$1
  if [ "$1" = prototype ]; then which=(--method prototype --size 400) name=$1; fi
  emat eval "${which[@]}" "${DATA[@]}" --fold "$2" --way 2 --shot 1 --setting all --tasks "$TASKS" \
    -o "$RUNS/results/$name-fold$2.json"
}

folds() { # method, name of the results, options
  emat eval --model "$RUNS/$STEP-$1-fold{fold}/last.safetensors" --method "$1" --size 384 "${DATA[@]}" \
    -o "$RUNS/results/$NAME$1-$2.json" "${@:3}"
}

older() { # method, size: first tasks whose query shows the class, then also tasks whose query does not
  older_step "$1" "$2" "$RUNS/$1-fold0" "${OLDER:-4000}" --positive 1
  older_step "$1" "$2" "$RUNS/further-$1-fold0" "${OLDER_FURTHER:-3000}" --positive 0.5 --foreground-weight 3 --seed 1 \
    --start-from "$RUNS/$1-fold0/last.safetensors"
  emat eval --model "$RUNS/further-$1-fold0/last.safetensors" --method "$1" --size "$2" "${DATA[@]}" --fold 0 --way 2 \
    --shot 1 --setting all --tasks 400 -o "$RUNS/results/$1-resnet50-fold0.json"
}

older_step() { # method, size, folder, tasks, options
  local out=$3 names=$RUNS/every-fourth.txt
  mkdir -p "$RUNS"
  cut -d_ -f1,2 "$LISTS"/pascal/trn/fold[123].txt | sort -u | awk 'NR % 4 == 1' > "$names"  # the features of all would fill a disk
  emat train --method "$1" --backbone resnet50-v1 --size "$2" "${DATA[@]}" --names "$names" --fold 0 --max-tasks "$4" \
    --tasks-per-epoch 500 --batch "${BATCH:-4}" --at-once 1 --schedule cosine --warmup 20 --ema 0.99 --clip-grad 1 --mask-size 64 \
    --queries listed --val-tasks 0 --cache-float16 --cache "$RUNS/features-$2" --cache-memory 5 "${@:5}" --out "$out" \
    $([ -f "$out/state.pt" ] && echo --resume)
}

further() { # method, name of the run it starts from, options
  train "$1" "$RUNS/further-$2" "$FURTHER" --start-from "$RUNS/$2/last.safetensors" "${@:3}"
}

longer() { # method, name of the first run, options; another seed gives other tasks
  train "$1" "$RUNS/longer-$2" "$LONGER" --seed 1 --start-from "$RUNS/further-$2/last.safetensors" "${@:3}"
}

stack() { # fold or "default"; the first channels of the network are those of the head that it starts from
  local name=emat-fold$1 start=$RUNS/longer-emat-fold$1/last.safetensors leave_out=(--fold "$1")
  if [ "$1" = default ]; then name=default start=default-light leave_out=(); fi
  train emat "$RUNS/stack-$name" "$STACK" --backbone efficientnet-lite2+mobilesam --seed 2 --start-from "$start" "${leave_out[@]}"
}

case ${1:-} in
  train) train "$2" "$RUNS/$2-fold$3" "$TRAINING" --fold "$3" ;;
  further) further "$2" "$2-fold$3" --fold "$3" ;;
  longer) longer "$2" "$2-fold$3" --fold "$3" ;;
  stack) stack "$2" ;;
  default) train emat "$RUNS/default" "$TRAINING" && further emat default ;;
  eval) evaluate "$2" "$3" ;;
  sizes) folds "$2" sizes --fold all --way 1 --shot 1 --object-size 0-5,5-10,10-15,0-15 ;;
  ways) folds "$2" ways --fold all --way 1,2,3,4,5 --shot 5 --setting fully-augmented --tasks 200 ;;
  segment) folds "$2" segment --fold "$3" --way 1 --shot 1,5 --query-has-class --tasks "$TASKS" ;;
  older) older "$2" "$3" ;;
  all)
    for fold in 0 1 2 3; do
      for method in emat cst; do
        train "$method" "$RUNS/$method-fold$fold" "$TRAINING" --fold "$fold"
        further "$method" "$method-fold$fold" --fold "$fold"
      done
      longer emat "emat-fold$fold" --fold "$fold"
      for method in emat emat-prior cst prototype; do evaluate "$method" "$fold"; done
    done
    train emat "$RUNS/default" "$TRAINING" && further emat default
    ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 2 ;;
esac
