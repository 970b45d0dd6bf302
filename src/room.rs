//! Whether a run on GPUs finds room, before anything is loaded.

use crate::error::Failure;
use crate::generation::Job;
use crate::report::gib;
use crate::scenario::plan_failure;
use moetwin::cuda::probe::Gpu;
use moetwin::models::{BuildOptions, LogitsRows, Phase, RankId, Sequence, Step, plan};
use moetwin::runtime::ledger::{LedgerOptions, RankLedger, ledger};
use moetwin::runtime::lower;

/// Bytes that a rank allocates for certain: what it cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    weights: u64,
    kv_pool: u64,
    activations: u64,
}

impl Needs {
    fn of(ledger: &RankLedger) -> Self {
        let weights = ledger.lines.iter().filter(|l| l.name.starts_with("weights:")).map(|l| l.bytes).sum();
        Self { weights, kv_pool: ledger.line_bytes("KV pool"), activations: ledger.line_bytes("activations arena") }
    }
    fn bytes(self) -> u64 {
        self.weights + self.kv_pool + self.activations
    }
}

/// Errors where one of `ranks`, each with the number of its GPU, needs more than is free there.
pub(crate) fn check(job: &Job<'_>, capacity: u32, ranks: &[(RankId, usize)], gpus: &[Gpu]) -> Result<(), Failure> {
    let decode = step(job, Phase::Decode, capacity.saturating_sub(1), |_| 1);
    let prefill = step(job, Phase::Prefill, 0, |prompt| prompt.len() as u32);
    let (decode, prefill) = (needs(job, &decode, ranks)?, needs(job, &prefill, ranks)?);
    for ((&(rank, ordinal), decode), prefill) in ranks.iter().zip(decode).zip(prefill) {
        // One copy of the weights and one pool, and an arena for each of the two programs.
        let all = Needs { activations: decode.activations + prefill.activations, ..decode };
        if let Some(gpu) = gpus.get(ordinal)
            && all.bytes() > gpu.free_bytes
        {
            return Err(Failure::Running(too_large(rank, &all, gpu)));
        }
    }
    Ok(())
}

fn step(job: &Job<'_>, phase: Phase, past: u32, new: impl Fn(&[i32]) -> u32) -> Step {
    let logits = if job.dump && phase == Phase::Prefill { LogitsRows::All } else { LogitsRows::Last };
    Step { phase, sequences: job.prompts.iter().map(|p| Sequence { past, new: new(p) }).collect(), logits }
}

fn needs(job: &Job<'_>, step: &Step, ranks: &[(RankId, usize)]) -> Result<Vec<Needs>, Failure> {
    let graph = plan(job.spec, step, &job.deployment, &BuildOptions::default()).map_err(|e| plan_failure(&e, &job.deployment))?;
    let program = lower(graph, job.lower()).map_err(|e| Failure::Running(e.to_string()))?;
    let options = LedgerOptions { captured_buckets: 0, channels: 0, spare_kv_bytes: 0 };
    let ledger = ledger(&program, job.spec, &options).map_err(|e| Failure::Running(e.to_string()))?;
    let of = |rank: RankId| ledger.ranks.iter().find(|l| l.rank == rank).map(Needs::of);
    ranks.iter().map(|(rank, _)| of(*rank).ok_or_else(|| Failure::Running(format!("no ledger of rank {}", rank.0)))).collect()
}

fn too_large(rank: RankId, needs: &Needs, gpu: &Gpu) -> String {
    let parts = [("weights", needs.weights), ("KV pool", needs.kv_pool), ("activations", needs.activations)];
    let parts: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {:.2} GiB", gib(*bytes))).collect();
    format!(
        "rank {} does not fit: it needs {} bytes ({:.2} GiB: {}); GPU {} ({}) has {} bytes free ({:.2} of {:.2} GiB). Nothing was loaded. \
         What would help: more ranks (--tp, --ep), fewer layers (--layers), fewer or shorter sequences",
        rank.0,
        needs.bytes(),
        gib(needs.bytes()),
        parts.join(", "),
        gpu.ordinal,
        gpu.name,
        gpu.free_bytes,
        gib(gpu.free_bytes),
        gib(gpu.memory_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin::models::Deployment;
    use moetwin::runtime::builtin;
    use moetwin::runtime::text::Sampler;
    use moetwin::runtime::weights::SyntheticWeights;

    fn gpu(ordinal: usize, free_bytes: u64) -> Gpu {
        let name = "a GPU".to_owned();
        Gpu { ordinal, name, compute_capability: "9.0".to_owned(), multiprocessors: 132, memory_bytes: 1 << 37, free_bytes }
    }

    /// What ranks of the shipped model say where GPU 0 and GPU 1 have so much left.
    fn said(tp: u32, capacity: u32, free: [u64; 2]) -> Result<(), String> {
        let spec = builtin::spec().unwrap();
        let weights = SyntheticWeights::new(&spec, 1);
        let job = Job {
            spec: &spec,
            weights: &weights,
            deployment: Deployment { tp, ..Deployment::default() },
            fuse_sums: false,
            prompts: &[vec![1; 20]],
            max_tokens: 8,
            sampler: Sampler::Greedy,
            order_seed: 0,
            stop: &[],
            dump: false,
            warm_passes: 0,
        };
        let ranks: Vec<_> = (0..tp).map(|r| (RankId(r), r as usize)).collect();
        check(&job, capacity, &ranks, &[gpu(0, free[0]), gpu(1, free[1])]).map_err(|e| match e {
            Failure::Running(text) => text,
            Failure::Input(_) => panic!("not the input's fault"),
        })
    }

    #[test]
    fn the_rank_that_finds_no_room_is_named_with_its_bytes() {
        let needed = |text: &str| text.split("it needs ").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
        let whole = said(1, 28, [1000, 0]).unwrap_err();
        assert!(whole.starts_with("rank 0 does not fit") && whole.contains("GPU 0 (a GPU) has 1000 bytes free"), "{whole}");
        let bytes = needed(&whole);
        // Packed INT4 experts are most of it: the file has 4.4 MB of tensors.
        assert!((4_000_000..8_000_000).contains(&bytes), "{bytes}");
        assert_eq!(said(1, 28, [bytes, 0]), Ok(()), "just enough is enough");
        assert!(said(1, 28, [bytes - 1, 0]).is_err());
        let second = said(2, 28, [u64::MAX, 1000]).unwrap_err();
        assert!(second.starts_with("rank 1 does not fit") && needed(&second) < bytes, "{second}");
        // Longer sequences need a larger pool: 512 more tokens of the cache's width in bf16, in every layer.
        let longer = needed(&said(1, 540, [1000, 0]).unwrap_err());
        assert_eq!(longer - bytes, 512 * spec_cache_bytes(), "{longer} {bytes}");
    }

    /// Bytes that a token takes in the caches of the shipped model.
    fn spec_cache_bytes() -> u64 {
        let (layers, latent, rope) = (5, 64, 16);
        layers * (latent + rope) * 2
    }
}
