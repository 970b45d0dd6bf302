//! Loads drawn from a distribution, token by token.

use super::{Distribution, Load, RoutingLoad, RoutingQuery};
use moetwin_models::ExpertPlacement;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Draws spent on a pool of routings; a step of one layer takes `tokens * topk` of them.
const POOL_DRAWS: u64 = 1 << 15;
/// Draws spent on each layer's pool where layers have their own popularity.
const LAYER_DRAWS: u64 = 1 << 12;
/// Most routings in a pool.
const MOST_ROUTINGS: u64 = 1024;
/// Most tokens drawn one by one; the loads of longer steps are scaled up from as many.
const MOST_TOKENS: u64 = 1 << 13;
/// Draws of an expert that fall outside the token's groups before the first free one inside is taken: a group drawn for its
/// popularity holds a share of it, so this many failures mean that the allowed groups have nothing popular left.
const GROUP_DRAWS: u32 = 64;

/// Loads of routings drawn from a distribution. The same question has the same answer, whatever was asked before.
#[derive(Debug)]
pub struct SampledRouting {
    distribution: Distribution,
    seed: u64,
    pools: Mutex<BTreeMap<PoolKey, Arc<Pool>>>,
}

/// What a question has in common with others that draw from the same pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PoolKey {
    /// Only where layers have their own popularity.
    layer: Option<u16>,
    tokens: u64,
    topk: u32,
    experts: u32,
    groups: u32,
    topk_groups: u32,
    parts: u32,
    placement: Option<Vec<u32>>,
}

/// Drawn routings, from the least to the most uneven: the loads of all ranks each.
#[derive(Debug)]
struct Pool {
    routings: Vec<Vec<Load>>,
}

/// Expectations of one layer, over the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutingStatistics {
    /// Mean distinct experts of a rank.
    pub mean_distinct: f64,
    /// Mean distinct experts of the rank that has the most.
    pub busiest_distinct: f64,
    /// Mean token-expert pairs of the rank that has the most.
    pub busiest_pairs: f64,
}

impl SampledRouting {
    /// Loads drawn from `distribution` with `seed`.
    pub fn new(distribution: Distribution, seed: u64) -> Self {
        Self { distribution, seed, pools: Mutex::new(BTreeMap::new()) }
    }
    /// The distribution drawn from.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }
    /// Expectations of a layer.
    pub fn statistics(&self, query: &RoutingQuery<'_>) -> RoutingStatistics {
        let pool = self.pool(query);
        let routings = &pool.routings;
        let count = routings.len() as f64;
        let mean = |of: &dyn Fn(&[Load]) -> u64| routings.iter().map(|r| of(r) as f64).sum::<f64>() / count;
        RoutingStatistics {
            mean_distinct: mean(&|r| r.iter().map(|l| l.distinct).sum()) / f64::from(query.parts.max(1)),
            busiest_distinct: mean(&|r| r.iter().map(|l| l.distinct).max().unwrap_or(0)),
            busiest_pairs: mean(&|r| r.iter().map(|l| l.pairs).max().unwrap_or(0)),
        }
    }
    fn pool(&self, query: &RoutingQuery<'_>) -> Arc<Pool> {
        let key = PoolKey {
            layer: matches!(self.distribution, Distribution::Histogram(_)).then_some(query.layer),
            tokens: query.tokens,
            topk: query.topk,
            experts: query.experts,
            groups: query.groups,
            topk_groups: query.topk_groups,
            parts: query.parts,
            placement: query.placement.map(|p| p.physical_to_logical.clone()),
        };
        // A panic elsewhere leaves whole pools behind, never half of one.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.entry(key).or_insert_with_key(|key| Arc::new(self.draw(key, query.placement))).clone()
    }
    fn draw(&self, key: &PoolKey, placement: Option<&ExpertPlacement>) -> Pool {
        let mut rng = ChaCha8Rng::from_seed(self.seed_of(key));
        let weights = self.weights(key);
        let tokens = key.tokens.min(MOST_TOKENS);
        let draws = if key.layer.is_some() { LAYER_DRAWS } else { POOL_DRAWS };
        let count = draws.checked_div(tokens * u64::from(key.topk)).unwrap_or(1).clamp(1, MOST_ROUTINGS);
        let mut layer = Layer::new(key, placement, weights);
        layer.same = self.distribution == Distribution::Same;
        let mut routings: Vec<Vec<Load>> = (0..count)
            .map(|_| {
                if matches!(self.distribution, Distribution::Zipf { .. } | Distribution::Same) {
                    layer.shuffle(&mut rng);
                }
                scale(layer.route(tokens, &mut rng), tokens, key.tokens)
            })
            .collect();
        let most = |r: &[Load], of: fn(&Load) -> u64| r.iter().map(of).max().unwrap_or(0);
        routings.sort_by_key(|r| (most(r, |l| l.distinct), most(r, |l| l.pairs)));
        Pool { routings }
    }
    /// Popularity of the experts, most popular first for Zipf; `None` where all are alike.
    fn weights(&self, key: &PoolKey) -> Option<Vec<f64>> {
        match &self.distribution {
            Distribution::Uniform | Distribution::Same => None,
            Distribution::Zipf { exponent } => Some((1..=key.experts).map(|r| libm::pow(f64::from(r), -exponent)).collect()),
            // Layers without counts were refused by the check; asked all the same, they are uniform.
            Distribution::Histogram(h) => key
                .layer
                .and_then(|l| h.layers.get(&l))
                .filter(|c| c.len() == key.experts as usize && c.iter().any(|c| *c > 0))
                .map(|counts| counts.iter().map(|c| *c as f64).collect()),
        }
    }
    fn seed_of(&self, key: &PoolKey) -> [u8; 32] {
        let mut bytes = [0; 32];
        let layer = key.layer.map_or(0, |l| u64::from(l) + 1);
        let shape = u64::from(key.topk) | u64::from(key.experts) << 16 | u64::from(key.parts) << 40;
        let rest = layer | u64::from(key.groups) << 20 | u64::from(key.topk_groups) << 36;
        for (to, from) in bytes.chunks_exact_mut(8).zip([self.seed, key.tokens, shape, rest]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        bytes
    }
}

impl RoutingLoad for SampledRouting {
    fn load(&self, query: &RoutingQuery<'_>, index: u32) -> Load {
        let pool = self.pool(query);
        // Multiples of the golden ratio, modulo 1, visit the pool evenly however many layers ask.
        let place = (u64::from(query.layer) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (u128::from(place) * pool.routings.len() as u128) >> 64;
        pool.routings[at as usize].get(index as usize).copied().unwrap_or_default()
    }
}

/// The experts of a layer and where they are.
struct Layer {
    topk: usize,
    group_size: usize,
    topk_groups: usize,
    parts: usize,
    slots_per_part: usize,
    /// Physical slots of each logical expert.
    slots: Vec<Vec<u32>>,
    slot_count: usize,
    /// Which expert has the `i`-th weight.
    order: Vec<u32>,
    urn: Urn,
    /// Whether every token takes what the first one took.
    same: bool,
}

impl Layer {
    fn new(key: &PoolKey, placement: Option<&ExpertPlacement>, weights: Option<Vec<f64>>) -> Self {
        let experts = key.experts as usize;
        let mut slots = vec![Vec::new(); experts];
        match placement {
            None => slots.iter_mut().zip(0..).for_each(|(s, i)| s.push(i)),
            Some(p) => {
                for (slot, expert) in (0..).zip(&p.physical_to_logical) {
                    if let Some(slots) = slots.get_mut(*expert as usize) {
                        slots.push(slot);
                    }
                }
            }
        }
        let slot_count = placement.map_or(experts, |p| p.physical_to_logical.len());
        let parts = (key.parts as usize).max(1);
        let groups = if key.groups > 0 && experts.is_multiple_of(key.groups as usize) { key.groups as usize } else { 1 };
        Self {
            topk: (key.topk as usize).min(experts),
            group_size: (experts / groups).max(1),
            topk_groups: (key.topk_groups as usize).clamp(1, groups),
            parts,
            slots_per_part: slot_count.div_ceil(parts).max(1),
            slots,
            slot_count,
            order: (0..key.experts).collect(),
            urn: Urn::new(experts, weights),
            same: false,
        }
    }
    /// Gives the weights to other experts.
    fn shuffle(&mut self, rng: &mut ChaCha8Rng) {
        for i in (1..self.order.len()).rev() {
            self.order.swap(i, below(rng, i + 1));
        }
    }
    /// The loads of all ranks when `tokens` tokens have chosen.
    fn route(&self, tokens: u64, rng: &mut ChaCha8Rng) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.parts];
        let mut hit = vec![false; self.slot_count];
        let mut last_token = vec![u64::MAX; self.parts];
        let groups = self.group_urn();
        let mut chosen = Vec::with_capacity(self.topk);
        for token in 0..tokens {
            if token == 0 || !self.same {
                self.choose(rng, groups.as_ref(), &mut chosen);
            }
            for index in &chosen {
                let slots = &self.slots[self.order[*index] as usize];
                if slots.is_empty() {
                    continue;
                }
                let slot = slots[(token % slots.len() as u64) as usize] as usize;
                let part = (slot / self.slots_per_part).min(self.parts - 1);
                let load = &mut loads[part];
                load.pairs += 1;
                load.distinct += u64::from(!std::mem::replace(&mut hit[slot], true));
                load.rows += u64::from(std::mem::replace(&mut last_token[part], token) != token);
            }
        }
        loads
    }
    /// The groups, as popular as their experts together; `None` where every group takes part.
    fn group_urn(&self) -> Option<Urn> {
        let groups = self.slots.len() / self.group_size;
        if self.topk_groups >= groups {
            return None;
        }
        let weights = self.urn.weights.as_ref().map(|w| {
            let mut sums = vec![0.0; groups];
            self.order.iter().zip(w).for_each(|(expert, w)| sums[*expert as usize / self.group_size] += w);
            sums
        });
        Some(Urn::new(groups, weights))
    }
    /// Draws one token's experts, as indices of `order` in ascending order.
    fn choose(&self, rng: &mut ChaCha8Rng, groups: Option<&Urn>, chosen: &mut Vec<usize>) {
        chosen.clear();
        let allowed = groups.map(|urn| {
            let mut groups = Vec::with_capacity(self.topk_groups);
            while groups.len() < self.topk_groups {
                let group = urn.draw(rng, &groups);
                groups.insert(groups.partition_point(|g| *g < group), group);
            }
            groups
        });
        let is_allowed = |index: usize| allowed.as_ref().is_none_or(|g| g.contains(&(self.order[index] as usize / self.group_size)));
        while chosen.len() < self.topk {
            let drawn = (0..GROUP_DRAWS).map(|_| self.urn.draw(rng, chosen)).find(|i| is_allowed(*i));
            let first_free = || (0..self.order.len()).find(|i| is_allowed(*i) && !chosen.contains(i));
            let Some(index) = drawn.or_else(first_free) else { return };
            chosen.insert(chosen.partition_point(|i| *i < index), index);
        }
    }
}

/// Draws without putting back.
struct Urn {
    size: usize,
    /// `None` where all are alike.
    weights: Option<Vec<f64>>,
    cumulated: Vec<f64>,
}

impl Urn {
    fn new(size: usize, weights: Option<Vec<f64>>) -> Self {
        let running = |sum: &mut f64, w: &f64| {
            *sum += w;
            Some(*sum)
        };
        let cumulated = weights.iter().flatten().scan(0.0, running).collect();
        Self { size, weights, cumulated }
    }
    /// One of those that are not in `taken`, which is sorted and holds fewer than all.
    fn draw(&self, rng: &mut ChaCha8Rng, taken: &[usize]) -> usize {
        let Some(weights) = &self.weights else {
            let index = below(rng, self.size - taken.len());
            return taken.iter().fold(index, |index, t| index + usize::from(index >= *t));
        };
        let left = self.cumulated.last().copied().unwrap_or(0.0) - taken.iter().map(|t| weights[*t]).sum::<f64>();
        // 53 random bits: every value below 1 that f64 spaces evenly. Then past what is taken, as if it were not there.
        let point = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * left;
        let point = taken.iter().fold(point, |p, t| if p >= self.cumulated[*t] - weights[*t] { p + weights[*t] } else { p });
        let index = self.cumulated.partition_point(|c| *c <= point);
        // Rounding can land on one that is taken, or past the end when nothing of weight is left.
        let free = |i: &usize| !taken.contains(i);
        (index..self.size).find(free).or_else(|| (0..self.size).find(free)).unwrap_or(0)
    }
}

/// A number below `n`. The bias of the multiplication is under `n / 2^32`.
fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}

/// Loads of `tokens` tokens from those of `drawn`. Pairs keep their sum; experts that nobody of many tokens chose stay unchosen.
fn scale(loads: Vec<Load>, drawn: u64, tokens: u64) -> Vec<Load> {
    if drawn == tokens {
        return loads;
    }
    let times = |n: u64| (u128::from(n) * u128::from(tokens) / u128::from(drawn.max(1))) as u64;
    let (mut before, mut rows_before) = (0, 0);
    loads
        .into_iter()
        .map(|l| {
            let (pairs, rows) = (before + l.pairs, rows_before + l.rows);
            let scaled = Load { distinct: l.distinct, pairs: times(pairs) - times(before), rows: times(rows) - times(rows_before) };
            (before, rows_before) = (pairs, rows);
            scaled
        })
        .collect()
}
