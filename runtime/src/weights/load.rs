//! A rank's share of a weight, as values.

use super::checkpoint::Checkpoint;
use super::complete::{self, Layers};
use super::fault::{CheckpointError, Fault};
use super::naming::{Naming, NoNaming};
use super::shard::held_indices;
use super::source::{Matrix, OpenSource};
use super::synthetic::Recipe;
use moetwin_kernels::launch::storage::{Packed, extent_of};
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::graph::SplitError;
use moetwin_models::{Graph, ModelSpec, RankId, TensorId, TensorKind, WeightRef, WeightRole};
use std::ops::Range;
use std::path::Path;

/// Where the values of weights come from.
pub trait WeightSource: Sync {
    /// The part of weight `tensor` that `rank` holds, in the layout of the graph's tensor.
    ///
    /// f32 holds every stored value exactly: bf16, f16 and f32 elements as they are, and integer times scale of INT4 weights. FP8 values are
    /// the f32 product of element and scale.
    fn load(&self, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Array<f32>, LoadError>;

    /// The same part of a weight stored in INT4 or FP8, as codes and scales; a scale for every `scale_cols` columns.
    fn load_packed(&self, graph: &Graph, tensor: TensorId, _rank: RankId, _scale_cols: u64) -> Result<Packed, LoadError> {
        Err(LoadError::NotPacked { tensor: graph.tensors[tensor].name.clone() })
    }

    /// How an executor may make the same part itself, for sources that make their values up.
    fn recipe(&self, _graph: &Graph, _tensor: TensorId, _rank: RankId) -> Result<Option<Recipe>, LoadError> {
        Ok(None)
    }
}

/// [`WeightSource::load`] in the executor's element type.
pub fn load_weight<T: From<f32>>(source: &dyn WeightSource, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Array<T>, LoadError> {
    let Array { sizes, data } = source.load(graph, tensor, rank)?;
    let data = match data {
        Data::Real(values) => Data::Real(values.into_iter().map(T::from).collect()),
        Data::Int(values) => Data::Int(values),
    };
    Ok(Array { sizes, data })
}

/// Why a weight cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The deployment cannot cut it.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The tensor is no weight.
    #[error("{tensor} is not a weight")]
    NotAWeight {
        /// The graph's tensor.
        tensor: String,
    },
    /// The source has no codes and scales of it.
    #[error("{tensor} is not stored as codes and scales")]
    NotPacked {
        /// The graph's tensor.
        tensor: String,
    },
    /// No checkpoint naming is known.
    #[error(transparent)]
    Naming(#[from] NoNaming),
    /// The checkpoint's tensors are not what the model needs.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The graph was built from another model than the weights.
    #[error("{tensor}: the graph says [{graph}], the model's weight is [{model}]")]
    OtherModel {
        /// The graph's tensor.
        tensor: String,
        /// Its global sizes.
        graph: String,
        /// The sizes that the checkpoint's naming gives it.
        model: String,
    },
    /// The rank's share does not fit the address space.
    #[error("{tensor}: the share of {rank} is too large for this machine")]
    TooLarge {
        /// The graph's tensor.
        tensor: String,
        /// The rank.
        rank: RankId,
    },
}

/// A rank's share of a weight: which experts (`None` for weights without), rows and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Role and layer.
    pub(crate) weight: WeightRef,
    /// The graph tensor's name.
    pub(crate) name: String,
    /// Sizes of the local array.
    pub(crate) sizes: Vec<usize>,
    /// Elements of the local array.
    pub(crate) len: usize,
    /// Logical experts in slot order; one 0 for weights without experts.
    pub(crate) experts: Vec<u32>,
    /// Runs of global rows.
    pub(crate) rows: Vec<Range<u64>>,
    /// Runs of global columns; `0..1` for vectors.
    pub(crate) cols: Vec<Range<u64>>,
    /// Rows and columns of the whole matrix (of one expert).
    pub(crate) whole: Matrix,
}

impl Share {
    pub(crate) fn of(graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Self, LoadError> {
        let t = &graph.tensors[tensor];
        let TensorKind::Weight(weight) = t.kind else { return Err(LoadError::NotAWeight { tensor: t.name.clone() }) };
        let mut dims = held_indices(graph, tensor, rank)?;
        let count = |runs: &[Range<u64>]| runs.iter().map(|r| r.end - r.start).sum::<u64>();
        let too_large = || LoadError::TooLarge { tensor: t.name.clone(), rank };
        let sizes = dims.iter().map(|runs| usize::try_from(count(runs)).map_err(|_| too_large())).collect::<Result<Vec<_>, _>>()?;
        let len = sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).ok_or_else(too_large)?;
        let mut global = t.shape.iter().filter_map(moetwin_models::Dim::fixed_size).collect::<Vec<_>>();
        let experts = if has_experts(weight.role) && !dims.is_empty() {
            global.remove(0);
            dims.remove(0).into_iter().flatten().map(|e| e as u32).collect()
        } else {
            vec![0]
        };
        let mut dims = dims.into_iter();
        let (rows, cols) = (dims.next().unwrap_or_default(), dims.next().unwrap_or_else(|| std::iter::once(0..1).collect()));
        let whole = Matrix { rows: global.first().copied().unwrap_or(0), cols: global.get(1).copied().unwrap_or(1) };
        Ok(Self { weight, name: t.name.clone(), sizes, len, experts, rows, cols, whole })
    }
}

/// Whether the first dimension of a role's weight is the expert.
pub(crate) fn has_experts(role: WeightRole) -> bool {
    matches!(role, WeightRole::ExpertsGateUp | WeightRole::ExpertsDown | WeightRole::ExpertsGateUpBias | WeightRole::ExpertsDownBias)
}

/// A model's checkpoint, found complete.
#[derive(Debug)]
pub struct CheckpointWeights {
    checkpoint: Checkpoint,
    spec: ModelSpec,
}

impl CheckpointWeights {
    /// Opens the checkpoint of a folder for a model.
    ///
    /// The error lists everything that is wrong: with the files, and with the tensors that the model needs or has no use for.
    pub fn open(dir: &Path, spec: &ModelSpec, layers: Layers) -> Result<Self, CheckpointError> {
        let (checkpoint, faults) = Checkpoint::scan(dir);
        Self::complete(checkpoint, faults, spec, layers)
    }
    /// Weights of a checkpoint that was opened before.
    pub fn new(checkpoint: Checkpoint, spec: &ModelSpec, layers: Layers) -> Result<Self, CheckpointError> {
        Self::complete(checkpoint, Vec::new(), spec, layers)
    }
    fn complete(checkpoint: Checkpoint, mut faults: Vec<Fault>, spec: &ModelSpec, layers: Layers) -> Result<Self, CheckpointError> {
        // Of a file that could not be read every tensor is missing; saying so of each would hide the cause. What the others hold wrongly is
        // said all the same.
        let unread = faults.iter().any(|f| matches!(f, Fault::Unreadable { .. } | Fault::Malformed { .. }));
        let certain = |f: &Fault| !unread || matches!(f, Fault::Misshapen { .. } | Fault::WrongType { .. });
        faults.extend(complete::faults(&checkpoint, spec, layers).into_iter().filter(certain));
        Ok(Self { checkpoint: checkpoint.unless(faults)?, spec: spec.clone() })
    }
    /// The tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }
}

impl WeightSource for CheckpointWeights {
    fn load(&self, graph: &Graph, tensor: TensorId, rank: RankId) -> Result<Array<f32>, LoadError> {
        let share = Share::of(graph, tensor, rank)?;
        let naming = Naming::detect(&self.spec, &|name| self.checkpoint.contains(name));
        let mut values = Vec::with_capacity(share.len);
        for &expert in &share.experts {
            self.read_expert(&share, &naming, expert, &mut |source, row, cols| source.read(row, cols, &mut values))?;
        }
        Ok(Array { sizes: share.sizes, data: Data::Real(values) })
    }

    fn load_packed(&self, graph: &Graph, tensor: TensorId, rank: RankId, scale_cols: u64) -> Result<Packed, LoadError> {
        let share = Share::of(graph, tensor, rank)?;
        let extent = extent_of(graph, tensor, rank)?;
        let naming = Naming::detect(&self.spec, &|name| self.checkpoint.contains(name));
        let (mut codes, mut scales) = (Vec::with_capacity(share.len), Vec::new());
        for &expert in &share.experts {
            let mut read = |source: &OpenSource<'_, '_>, row, cols| source.read_packed(row, cols, scale_cols, &mut codes, &mut scales);
            self.read_expert(&share, &naming, expert, &mut read)?;
        }
        Ok(Packed { extent, codes, scales })
    }
}

/// What is done with columns of a row of a stored matrix.
type Visit<'v> = dyn FnMut(&OpenSource<'_, '_>, u64, Range<u64>) -> Result<(), Fault> + 'v;

impl CheckpointWeights {
    /// Visits the share's rows and columns of one expert's matrix, in order.
    fn read_expert(&self, share: &Share, naming: &Naming<'_>, expert: u32, visit: &mut Visit<'_>) -> Result<(), LoadError> {
        let sources = naming.sources(share.weight, expert)?;
        let rows: u64 = sources.iter().map(|s| s.matrix.rows).sum();
        let cols = sources.first().map_or(0, |s| s.matrix.cols);
        if (Matrix { rows, cols }) != share.whole {
            let text = |m: Matrix| format!("{}, {}", m.rows, m.cols);
            let (graph, model) = (text(share.whole), text(Matrix { rows, cols }));
            return Err(LoadError::OtherModel { tensor: share.name.clone(), graph, model });
        }
        let mut first = 0;
        let mut opened = Vec::with_capacity(sources.len());
        for source in &sources {
            opened.push((first..first + source.matrix.rows, source.open(&self.checkpoint)?));
            first += source.matrix.rows;
        }
        for run in &share.rows {
            for (held, source) in &opened {
                for row in run.start.max(held.start)..run.end.min(held.end) {
                    for cols in &share.cols {
                        visit(source, row - held.start, cols.clone())?;
                    }
                }
            }
        }
        Ok(())
    }
}
