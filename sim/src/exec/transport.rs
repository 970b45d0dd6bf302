//! How the executor asks what an exchange takes; the machine's collective model answers.

use super::traffic::LinkShares;
use crate::cost::Provenance;
use crate::time::{Duration, Time};
use moetwin_models::Op;

/// What a norm behind a sum takes on the member for which it takes longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormAfter {
    /// As a kernel of its own.
    pub apart: Duration,
    /// In the kernel of the sum: its bytes over the memory rate.
    pub fused: Duration,
}

/// An exchange whose members have all arrived.
#[derive(Clone, Debug)]
pub struct Exchange<'a> {
    /// The collective, or [`Op::SendRecv`] with the sender first.
    pub op: &'a Op,
    /// GPUs of the members by ordinal, in group order.
    pub gpus: &'a [usize],
    /// When each arrived.
    pub arrivals: &'a [Time],
    /// Bytes of the message: the tensor as one rank holds it before a reduce or after a gather.
    pub message_bytes: u64,
    /// The norm that is part of the same command.
    pub norm: Option<NormAfter>,
}

/// What an exchange takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When each member is done if nothing else uses the links, in group order.
    pub ends: Vec<Time>,
    /// Part of it that is bytes over link rates.
    pub link: Duration,
    /// Share of each directed link that it uses alone, millionths of its time.
    pub shares: LinkShares,
    /// How it was carried out.
    pub how: String,
    /// Where the figure comes from.
    pub provenance: Provenance,
}

/// What moves data between GPUs.
pub trait Transport {
    /// When each member of an exchange is done. Errors say why it cannot be carried out.
    fn carry(&mut self, exchange: &Exchange<'_>) -> Result<Outcome, String>;
    /// Whether a sum and the norm of the same command are one kernel.
    fn fuses(&self) -> bool {
        false
    }
}
