//! Workspaces of all-to-all backends.

use moetwin_models::spec::Ffn;
use moetwin_models::{AllToAll, Graph, ModelSpec};

/// A workspace that cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkspaceError {
    /// The backend is not modelled.
    #[error("the workspace of all-to-all backend {0} is not modelled; modelled are none, nccl and flashinfer")]
    NotModelled(&'static str),
}

/// Tokens per rank that SGLang sizes FlashInfer's workspace for, before it is multiplied by the EP size
/// (`SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK`, 0.5.9).
const FLASHINFER_TOKENS_PER_RANK: u64 = 1024;

/// Bytes of all-to-all workspace on each rank.
///
/// FlashInfer (`moe_a2a_get_workspace_size_per_rank` as SGLang 0.5.9 calls it): `ep * max_tokens * (dispatch + combine)` with
/// `max_tokens = 1024 * ep`; a dispatched row is NVFP4 (`H/2 + H/16` bytes) with `8 * topk` bytes of ids and weights, a combined row bf16.
/// NCCL needs none: rows travel between arena buffers.
pub fn all_to_all_workspace(graph: &Graph, spec: &ModelSpec) -> Result<u64, WorkspaceError> {
    let d = &graph.deployment;
    if d.ep == 1 {
        return Ok(0);
    }
    let topk = spec.layers.iter().filter_map(|l| if let Ffn::Moe(m) = &l.ffn { Some(u64::from(m.topk)) } else { None }).max().unwrap_or(0);
    match d.a2a {
        AllToAll::None | AllToAll::Nccl => Ok(0),
        AllToAll::Flashinfer => {
            let ep = u64::from(d.ep);
            let dispatch_bytes = spec.hidden / 2 + spec.hidden / 16 + 8 * topk;
            let combine_bytes = 2 * spec.hidden;
            Ok(ep * (FLASHINFER_TOKENS_PER_RANK * ep) * (dispatch_bytes + combine_bytes))
        }
        AllToAll::Deepep => Err(WorkspaceError::NotModelled("deepep")),
    }
}
