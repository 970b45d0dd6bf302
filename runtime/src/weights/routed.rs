//! Made-up weights whose tokens choose experts as one says: biases of the router that make it so. The program stays the same.

use super::synthetic::SyntheticWeights;
use moetwin_kernels::routing::Distribution;
use moetwin_models::spec::{Ffn, MoeSpec, RouterSpec, Scoring};
use moetwin_models::{ModelSpec, WeightRole};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// A routing that made-up weights of a model cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnroutableModel {
    /// Nothing but the tokens decides.
    #[error("layer {layer} has a router without a bias: what tokens choose depends on the tokens alone")]
    NoBias {
        /// The decoder layer.
        layer: u16,
    },
    /// Popularity within groups is not popularity.
    #[error("layer {layer} chooses {topk_groups} of {groups} groups of experts first: popularities are not what biases alone give there")]
    Groups {
        /// The decoder layer.
        layer: u16,
        /// Groups.
        groups: u32,
        /// Groups that take part.
        topk_groups: u32,
    },
}

/// Biases by layer, for the role that decides the choice.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RouterBiases {
    layers: BTreeMap<u16, (WeightRole, Vec<f32>)>,
}

impl RouterBiases {
    /// The biases of a weight, where it is one that they replace.
    pub(super) fn of(&self, role: WeightRole, layer: u16) -> Option<&[f32]> {
        self.layers.get(&layer).filter(|(of, _)| *of == role).map(|(_, biases)| biases.as_slice())
    }
}

impl SyntheticWeights {
    /// The same weights but for biases of the routers, under which tokens choose experts by `distribution`.
    ///
    /// Normalized activations times a drawn router are close to standard normal logits, so an expert is taken with probability `p` where its
    /// bias is a constant less the score that `p` of all tokens exceed. Without a bias a drawn router is uniform by symmetry.
    pub fn with_routing(mut self, spec: &ModelSpec, distribution: &Distribution) -> Result<Self, UnroutableModel> {
        let mut layers = BTreeMap::new();
        for (layer, number) in spec.layers.iter().zip(0u16..) {
            let Ffn::Moe(moe) = &layer.ffn else { continue };
            let role = match &moe.router {
                r if r.correction_bias => WeightRole::CorrectionBias,
                r if r.logits_bias => WeightRole::RouterBias,
                _ if *distribution == Distribution::Uniform => continue,
                _ => return Err(UnroutableModel::NoBias { layer: number }),
            };
            let RouterSpec { groups, topk_groups, .. } = moe.router;
            if topk_groups < groups && matches!(distribution, Distribution::Zipf { .. } | Distribution::Histogram(_)) {
                return Err(UnroutableModel::Groups { layer: number, groups, topk_groups });
            }
            if let Some(biases) = biases(moe, number, distribution, self.seed()) {
                layers.insert(number, (role, biases));
            }
        }
        self.set_biases(RouterBiases { layers });
        Ok(self)
    }
}

fn biases(moe: &MoeSpec, layer: u16, distribution: &Distribution, seed: u64) -> Option<Vec<f32>> {
    let (experts, topk) = (moe.experts as usize, moe.topk as usize);
    let likely = distribution.inclusion(layer, experts, topk)?;
    // A score that a token gives an expert exceeds `exceeded(p)` with probability `p`.
    let exceeded = |p: f64| match moe.router.scoring {
        Scoring::Sigmoid => 1.0 / (1.0 + libm::exp(-quantile(1.0 - p))),
        Scoring::Softmax | Scoring::SoftmaxTopk => quantile(1.0 - p),
    };
    let places = if matches!(distribution, Distribution::Histogram(_)) { (0..experts).collect() } else { places(moe, layer, seed) };
    let mut biases = vec![0.0; experts];
    let middle = exceeded(topk as f64 / experts.max(1) as f64);
    for (place, p) in places.into_iter().zip(likely) {
        biases[place] = (middle - exceeded(p)) as f32;
    }
    Some(biases)
}

/// The expert at each place of popularity: shuffled by seed and layer. Where groups are chosen first, the most popular ones lie in as many groups
/// as take part, in turn.
fn places(moe: &MoeSpec, layer: u16, seed: u64) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // No weight has this stream (`role_number`): it is this of no role.
    rng.set_stream(u64::MAX << 48 | u64::from(layer) << 32);
    let experts = moe.experts as usize;
    let mut places: Vec<usize> = (0..experts).collect();
    for i in (1..experts).rev() {
        places.swap(i, ((u64::from(rng.next_u32()) * (i as u64 + 1)) >> 32) as usize);
    }
    let (groups, chosen) = (moe.router.groups.max(1) as usize, moe.router.topk_groups.max(1) as usize);
    if chosen < groups && experts.is_multiple_of(groups) {
        let size = experts / groups;
        let first = places[0] / size;
        places.sort_by_key(|e| (e / size + groups - first) % groups >= chosen);
        let among = chosen * size;
        // In turn: the same number of every group among the first ones.
        let mut turn: Vec<(usize, usize)> = Vec::with_capacity(among);
        let mut seen = vec![0; groups];
        for &e in &places[..among] {
            turn.push((seen[e / size], e));
            seen[e / size] += 1;
        }
        turn.sort_by_key(|(nth, _)| *nth);
        turn.iter().zip(&mut places).for_each(|((_, e), place)| *place = *e);
    }
    places
}

/// Standard deviations beyond which a normal value is taken as never seen.
const FARTHEST: f64 = 8.0;
/// Halvings of the interval in which the quantile is sought.
const HALVINGS: u32 = 60;

/// The value that a standard normal one falls below with probability `p`, within [`FARTHEST`].
fn quantile(p: f64) -> f64 {
    let below = |x: f64| 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
    let (mut low, mut high) = (-FARTHEST, FARTHEST);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if below(middle) < p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin_kernels::routing::RoutingHistogram;
    use moetwin_models::zoo;
    use std::collections::BTreeSet;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (p, x) in [(0.5, 0.0), (0.975, 1.959_963_984_540_054), (0.001, -3.090_232_306_167_813_5)] {
            assert!((quantile(p) - x).abs() < 1e-9, "{p}: {}", quantile(p));
        }
        assert!(quantile(0.0) < -7.9 && quantile(1.0) > 7.9);
    }

    /// What tokens with normal logits choose under the biases of a layer.
    fn choices(biases: &[f32], topk: usize, tokens: usize) -> Vec<BTreeSet<usize>> {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut unit = || (f64::from(rng.next_u32()) + 0.5) / f64::from(u32::MAX);
        let mut normal = || libm::sqrt(-2.0 * libm::log(unit())) * libm::cos(std::f64::consts::TAU * unit());
        let one = |normal: &mut dyn FnMut() -> f64| {
            let scores: Vec<f64> = biases.iter().map(|b| 1.0 / (1.0 + libm::exp(-normal())) + f64::from(*b)).collect();
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            order.into_iter().take(topk).collect()
        };
        (0..tokens).map(|_| one(&mut normal)).collect()
    }

    fn layer_of(distribution: &Distribution) -> Vec<f32> {
        let spec = zoo::spec("kimi-k2.5").unwrap();
        let weights = SyntheticWeights::new(&spec, 3).with_routing(&spec, distribution).unwrap();
        weights.biases(WeightRole::CorrectionBias, 7).unwrap().to_vec()
    }

    #[test]
    fn tokens_choose_as_often_as_asked() {
        let counts: Vec<u64> = (0..384).map(|e| 1 + e * e / 100).collect();
        let histogram = RoutingHistogram { schema: 1, layers: (0..61).map(|l| (l, counts.clone())).collect() };
        for distribution in [Distribution::Uniform, Distribution::Zipf { exponent: 1.0 }, Distribution::Histogram(histogram)] {
            let (biases, tokens) = (layer_of(&distribution), 20_000);
            let mut often = vec![0.0; 384];
            choices(&biases, 8, tokens).iter().flatten().for_each(|e| often[*e] += 1.0 / tokens as f64);
            let mut likely = distribution.inclusion(7, 384, 8).unwrap();
            assert!((likely.iter().sum::<f64>() - 8.0).abs() < 1e-6);
            if !matches!(distribution, Distribution::Histogram(_)) {
                // Which expert is how popular is drawn.
                often.sort_by(|a, b| b.total_cmp(a));
                likely.sort_by(|a, b| b.total_cmp(a));
            }
            let apart: f64 = often.iter().zip(&likely).map(|(a, b)| (a - b).abs()).sum();
            assert!(apart < 0.08 * 8.0, "{distribution:?}: {apart:.3} of 8 apart");
        }
    }

    #[test]
    fn all_tokens_take_the_same_experts_where_that_is_asked() {
        let chosen = choices(&layer_of(&Distribution::Same), 8, 500);
        assert!(chosen.iter().all(|c| *c == chosen[0]), "{:?} {:?}", chosen[0], chosen[1]);
        assert!(choices(&layer_of(&Distribution::Uniform), 8, 2)[0] != chosen[0]);
    }

    #[test]
    fn the_most_popular_lie_in_the_groups_that_take_part() {
        let spec = zoo::spec("deepseek-v3").unwrap();
        let Some(Ffn::Moe(moe)) = spec.layers.iter().map(|l| &l.ffn).find(|f| matches!(f, Ffn::Moe(_))) else { panic!("a MoE model") };
        let size = (moe.experts / moe.router.groups) as usize;
        for layer in 3..20 {
            let places = places(moe, layer, 1);
            let groups: BTreeSet<usize> = places[..8].iter().map(|e| e / size).collect();
            assert_eq!(groups.len(), moe.router.topk_groups as usize, "{places:?}");
            assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), places.len());
        }
        let zipf = Distribution::Zipf { exponent: 1.0 };
        assert!(matches!(SyntheticWeights::new(&spec, 1).with_routing(&spec, &zipf), Err(UnroutableModel::Groups { groups: 8, .. })));
    }

    #[test]
    fn routers_without_a_bias_are_refused_unless_uniform() {
        let spec = zoo::spec("qwen3-30b-a3b").unwrap();
        let of = |d: &Distribution| SyntheticWeights::new(&spec, 1).with_routing(&spec, d).err();
        assert_eq!(of(&Distribution::Same), Some(UnroutableModel::NoBias { layer: 0 }));
        assert_eq!(of(&Distribution::Uniform), None);
    }
}
