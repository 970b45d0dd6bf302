//! Launches chosen by measurement.

use super::{Points, inputs_of};
use crate::measurement::median_of;
use moetwin::cuda::exec::gpu::Host;
use moetwin::cuda::exec::{Choices, CudaExecutor, Repetitions};
use moetwin::kernels::launch::tuning::{PARTS, storage_word};
use moetwin::kernels::launch::{Choice, Tuning, launches, launches_with, storage_of};
use moetwin::models::{ModelSpec, NodeId, Op, RankId, Step, TensorId};
use moetwin::runtime::reference::{ExecuteError, StepInputs};
use moetwin::runtime::{Executor, Program};
use std::collections::BTreeMap;

/// A command under a choice must be faster by this share to be a candidate: repetitions differ by as much.
const WORTH: f64 = 0.03;
/// A captured step under choices must be faster by this share, in every turn.
const WORTH_OF_A_STEP: f64 = 0.002;
/// How often a step under choices and one without are measured in turn, and replays of a turn.
const TURNS: (u32, u32) = (4, 12);

/// Tries every number of warps a tile on every product of a step. What is faster for a command by itself is a candidate; what makes the captured
/// step faster is kept, all candidates together or, where they do not, those that do one after the other.
pub(super) fn tuned<H: Host>(
    executor: &mut CudaExecutor<H>,
    program: &Program,
    step: &Step,
    spec: &ModelSpec,
    points: &Points,
) -> Result<Vec<Choice>, ExecuteError> {
    let (rank, inputs) = (RankId(0), inputs_of(step, spec, points));
    let commands = program.ranks.get(rank).map_or(&[][..], |rp| &rp.commands);
    let mut times: BTreeMap<Choice, BTreeMap<u32, u64>> = BTreeMap::new();
    // None of PARTS stands for the constants.
    for parts in std::iter::once(0).chain(PARTS) {
        let tuning = if parts == 0 { Tuning::default() } else { Tuning::everywhere(parts) };
        executor.set_tuning(tuning.clone());
        let key = executor.prepare(program.clone())?;
        let often = Repetitions { replays: 0, eager: 0, windows: 8, choices: Choices::Routed };
        let Some(found) = executor.measure(key, &inputs, often)?.into_iter().next() else { continue };
        for (command, time) in commands.iter().zip(&found.commands) {
            let (Some(asked), Some(ps)) = (choice_of(program, command.id.node, rank), time.typical_ps()) else { continue };
            let launched = launches_with(&program.graph, command.id.node, rank, &tuning);
            // A kernel that does not ask is measured for nothing.
            if parts == 0 || launched != launches(&program.graph, command.id.node, rank) {
                *times.entry(asked).or_default().entry(parts).or_default() += ps;
            }
        }
    }
    let best = |(asked, times): (Choice, BTreeMap<u32, u64>)| {
        let before = *times.get(&0)?;
        let (parts, after) = times.into_iter().min_by_key(|(_, ps)| *ps)?;
        (parts != 0 && (after as f64) < before as f64 * (1.0 - WORTH)).then_some(Choice { parts, ..asked })
    };
    let candidates: Vec<Choice> = times.into_iter().filter_map(best).collect();
    let mut step = WholeStep { executor, program, inputs: &inputs };
    if candidates.is_empty() || step.is_faster(&[], &candidates)? {
        return Ok(candidates);
    }
    let mut kept = Vec::new();
    for candidate in candidates {
        let with: Vec<Choice> = kept.iter().cloned().chain([candidate]).collect();
        if step.is_faster(&kept, &with)? {
            kept = with;
        }
    }
    Ok(kept)
}

/// A captured step that is measured under choices.
struct WholeStep<'a, H: Host> {
    executor: &'a mut CudaExecutor<H>,
    program: &'a Program,
    inputs: &'a StepInputs,
}

impl<H: Host> WholeStep<'_, H> {
    /// Whether the step is faster under `after` than under `before`, measured in turn.
    fn is_faster(&mut self, before: &[Choice], after: &[Choice]) -> Result<bool, ExecuteError> {
        let mut keys = Vec::new();
        for choices in [before, after] {
            self.executor.set_tuning(Tuning::new(choices.to_vec()));
            keys.push(self.executor.prepare(self.program.clone())?);
        }
        let often = Repetitions { replays: TURNS.1, eager: 0, windows: 0, choices: Choices::Routed };
        for _ in 0..TURNS.0 {
            let mut medians = Vec::new();
            for key in &keys {
                let found = self.executor.measure(*key, self.inputs, often)?;
                medians.extend(found.first().and_then(|t| median_of(&t.captured_ps)));
            }
            let &[before, after] = medians.as_slice() else { return Ok(false) };
            if after as f64 > before as f64 * (1.0 - WORTH_OF_A_STEP) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What a node's product is to a choice, with no warps named; nothing where it is no product that asks.
fn choice_of(program: &Program, id: NodeId, rank: RankId) -> Option<Choice> {
    let (graph, node) = (&program.graph, &program.graph.nodes[id]);
    let size = |t: TensorId, dim: usize| graph.local_sizes(t, rank).ok()?.get(dim).copied();
    let rows = size(*node.outputs.first()?, 0)?;
    let (op, weight, n, k) = match node.op {
        Op::Linear { .. } => ("linear", node.inputs[1], size(node.outputs[0], 1)?, size(node.inputs[0], 1)?),
        Op::Experts { .. } => ("experts", node.inputs[4], size(node.inputs[4], 2)?, size(node.outputs[0], 1)?),
        _ => return None,
    };
    let storage = storage_word(storage_of(graph, weight, rank).ok()?).to_owned();
    Some(Choice { op: op.to_owned(), storage, n, k, rows, parts: 0 })
}
