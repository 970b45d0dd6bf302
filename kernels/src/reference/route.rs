//! Router: logits to expert ids and weights, and logical experts to physical slots.

use super::LocalContext;
use super::array::Array;
use super::error::ReferenceError;
use super::matmul::for_rows;
use super::operands::Operands;
use super::real::Real;
use moetwin_models::spec::{GroupScore, RouterSpec, Scoring};
use std::cmp::Ordering;

/// `(logits[T, E][, correction_bias[E]]) -> (ids[T, k], weights[T, k])`.
pub(super) fn route<T: Real>(
    operands: Operands<'_, T>,
    router: &RouterSpec,
    topk: usize,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    let count = if router.correction_bias { 2 } else { 1 };
    operands.expect(count, count)?;
    let logits = operands.matrix(0, "logits")?;
    let (experts, groups) = (logits.cols, router.groups as usize);
    let bias = if router.correction_bias { Some(operands.vector_of(1, "correction_bias", experts)?) } else { None };
    if topk > experts {
        return Err(operands.mismatch(0, "logits", format!("at least the {topk} experts a token goes to")));
    }
    if groups == 0 || !experts.is_multiple_of(groups) || router.topk_groups > router.groups || router.topk_groups == 0 {
        let expected = format!("experts in {groups} equal groups, {} of which take part", router.topk_groups);
        return Err(operands.mismatch(0, "logits", expected));
    }
    let [ids, weights] = operands.results(outputs)?;
    let ids = operands.id_result(ids, "ids", &[logits.rows, topk])?;
    let weights = operands.result(weights, "weights", logits.rows, topk)?;
    if topk == 0 {
        return Ok(());
    }
    for_rows(ids, topk, |row, ids| choose(router, &scores(router, logits.row(row)), bias, ids));
    let ids = &*ids;
    for_rows(weights, topk, |row, weights| weigh(router, logits.row(row), &ids[row * topk..(row + 1) * topk], weights));
    Ok(())
}

/// Scores of all experts, before any bias.
fn scores<T: Real>(router: &RouterSpec, logits: &[T]) -> Vec<T> {
    let mut scores = logits.to_vec();
    match router.scoring {
        Scoring::Sigmoid => scores.iter_mut().for_each(|s| *s = s.sigmoid()),
        Scoring::Softmax => softmax(&mut scores),
        Scoring::SoftmaxTopk => {}
    }
    scores
}

/// Writes the chosen experts, best first.
fn choose<T: Real>(router: &RouterSpec, scores: &[T], bias: Option<&[T]>, ids: &mut [i32]) {
    let mut biased = scores.to_vec();
    if let Some(bias) = bias {
        biased.iter_mut().zip(bias).for_each(|(s, b)| *s += *b);
    }
    if router.topk_groups < router.groups {
        let size = biased.len() / router.groups as usize;
        let group_scores: Vec<T> = biased.chunks_exact(size).map(|g| group_score(router.group_score, g)).collect();
        let mut kept = vec![false; group_scores.len()];
        best(&group_scores, router.topk_groups as usize).for_each(|g| kept[g] = true);
        for (group, scores) in biased.chunks_exact_mut(size).enumerate() {
            if !kept[group] {
                scores.fill(T::NEG_INFINITY);
            }
        }
    }
    let count = ids.len();
    for (id, expert) in ids.iter_mut().zip(best(&biased, count)) {
        *id = expert as i32;
    }
}

fn group_score<T: Real>(rule: GroupScore, group: &[T]) -> T {
    let mut top = best(group, 2).map(|i| group[i]);
    let first = top.next().unwrap_or(T::NEG_INFINITY);
    match rule {
        GroupScore::Max => first,
        GroupScore::TopTwoSum => top.next().map_or(first, |second| first + second),
    }
}

/// Indices of the `count` highest scores, best first, ties to the lowest index.
fn best<T: Real>(scores: &[T], count: usize) -> impl Iterator<Item = usize> + use<T> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| descending(scores[a], scores[b]));
    order.into_iter().take(count)
}

/// Highest first; what is not a number is last, so that it is chosen only when nothing else is left.
fn descending<T: Real>(a: T, b: T) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (a, b) => a.cmp(&b),
    }
}

/// Writes the weights of the chosen experts: unbiased scores, normalized and scaled as the rule says.
fn weigh<T: Real>(router: &RouterSpec, logits: &[T], ids: &[i32], weights: &mut [T]) {
    let scores = scores(router, logits);
    for (w, id) in weights.iter_mut().zip(ids) {
        *w = scores[*id as usize];
    }
    if router.scoring == Scoring::SoftmaxTopk {
        softmax(weights);
    }
    if router.normalize {
        let sum = weights.iter().copied().sum::<T>() + T::from_f64(router.normalize_eps);
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    weights.iter_mut().for_each(|w| *w *= T::from_f64(router.scale));
}

fn softmax<T: Real>(values: &mut [T]) {
    let largest = values.iter().fold(T::NEG_INFINITY, |m, v| m.at_least(*v));
    values.iter_mut().for_each(|v| *v = (*v - largest).exp());
    let sum: T = values.iter().copied().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

/// `(ids[T, k]) -> slots[T, k]`.
pub(super) fn place<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(1, 1)?;
    let ids = operands.ids(0, "ids")?;
    let [slots] = operands.results(outputs)?;
    let slots = operands.id_result(slots, "slots", &[ids.rows, ids.cols])?;
    for (i, (id, slot)) in ids.data.iter().zip(slots).enumerate() {
        let row = i / ids.cols;
        let choices = match usize::try_from(*id) {
            Ok(expert) => context.expert_slots.get(expert).map_or(&[][..], Vec::as_slice),
            Err(_) if *id == -1 => {
                *slot = -1;
                continue;
            }
            Err(_) => &[],
        };
        if choices.is_empty() {
            let problem = format!("expert {id} has no slot, {} experts are placed", context.expert_slots.len());
            return Err(operands.value("ids", row, problem));
        }
        *slot = choices[(context.first_token + row) % choices.len()] as i32;
    }
    Ok(())
}
