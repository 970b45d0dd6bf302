//! Which experts are popular.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How popular the experts of a layer are.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// The `r`-th most popular expert has weight `1 / r^exponent`; which expert that is differs from layer to layer.
    Zipf {
        /// 0 is uniform.
        exponent: f64,
    },
    /// Every token takes the same experts; which ones differs from layer to layer.
    Same,
    /// As counted.
    Histogram(RoutingHistogram),
}

/// How often each expert was chosen, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingHistogram {
    /// Version of this format, 1.
    pub schema: u32,
    /// Counts of every expert, by decoder layer.
    pub layers: BTreeMap<u16, Vec<u64>>,
}

/// The largest exponent of a Zipf distribution that says anything: beyond it every token takes the same experts.
const MOST_EXPONENT: f64 = 10.0;

impl Distribution {
    /// Errors where the distribution is none, or does not speak of the model's MoE layers, given as `(layer, experts)`.
    pub fn check(&self, layers: &[(u16, u32)]) -> Result<(), RoutingError> {
        match self {
            Distribution::Uniform | Distribution::Same => Ok(()),
            Distribution::Zipf { exponent } if (0.0..=MOST_EXPONENT).contains(exponent) => Ok(()),
            Distribution::Zipf { exponent } => Err(RoutingError::Exponent { exponent: exponent.to_string() }),
            Distribution::Histogram(h) => h.check(layers),
        }
    }

    /// How probable it is that a token takes each expert of `layer`: `topk` in sum, as far as none is certain. Entry `i` is the `i`-th most
    /// popular expert, for the caller to place; of a histogram, expert `i`. `None` where a histogram says nothing of the layer.
    pub fn inclusion(&self, layer: u16, experts: usize, topk: usize) -> Option<Vec<f64>> {
        let share = topk as f64 / experts.max(1) as f64;
        Some(match self {
            Distribution::Uniform => vec![share.min(1.0); experts],
            Distribution::Same => (0..experts).map(|i| f64::from(u8::from(i < topk))).collect(),
            Distribution::Zipf { exponent } => race((1..=experts).map(|r| libm::pow(r as f64, -exponent)).collect(), topk),
            Distribution::Histogram(h) => {
                let counts = h.layers.get(&layer).filter(|c| c.len() == experts)?;
                let total = counts.iter().sum::<u64>() as f64;
                counts.iter().map(|c| (topk as f64 * *c as f64 / total).min(1.0)).collect()
            }
        })
    }
}

/// Halvings of an interval that f64 can tell apart.
const HALVINGS: u32 = 200;

/// Probabilities to be among the first `topk` arrivals, where arrivals are exponential with these rates and the time of the `topk`-th is taken
/// as fixed: drawing without putting back is such a race.
fn race(rates: Vec<f64>, topk: usize) -> Vec<f64> {
    if topk >= rates.len() {
        return vec![1.0; rates.len()];
    }
    let by = |time: f64| rates.iter().map(move |r| 1.0 - libm::exp(-time * r));
    let (mut early, mut late) = (0.0, 1.0);
    while by(late).sum::<f64>() < topk as f64 && late < f64::MAX / 2.0 {
        late *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = (early + late) / 2.0;
        if by(middle).sum::<f64>() < topk as f64 { early = middle } else { late = middle }
    }
    by(late).collect()
}

impl RoutingHistogram {
    fn check(&self, layers: &[(u16, u32)]) -> Result<(), RoutingError> {
        if self.schema != 1 {
            return Err(RoutingError::Schema { schema: self.schema });
        }
        for &(layer, experts) in layers {
            let Some(counts) = self.layers.get(&layer) else { return Err(RoutingError::MissingLayer { layer }) };
            if counts.len() != experts as usize {
                return Err(RoutingError::Experts { layer, got: counts.len(), expected: experts });
            }
            if counts.iter().all(|c| *c == 0) {
                return Err(RoutingError::Empty { layer });
            }
        }
        Ok(())
    }
}

/// A routing that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoutingError {
    /// A Zipf exponent out of range.
    #[error("a Zipf exponent is between 0 and {MOST_EXPONENT}, not {exponent}")]
    Exponent {
        /// The exponent, printed.
        exponent: String,
    },
    /// An unknown version of the histogram format.
    #[error("routing histogram of schema {schema}, expected 1")]
    Schema {
        /// The version.
        schema: u32,
    },
    /// An MoE layer without counts.
    #[error("the routing histogram has no counts for MoE layer {layer}")]
    MissingLayer {
        /// The layer.
        layer: u16,
    },
    /// Another number of experts than the model's.
    #[error("the routing histogram has {got} experts in layer {layer}, the model has {expected}")]
    Experts {
        /// The layer.
        layer: u16,
        /// Counts given.
        got: usize,
        /// Experts of the model.
        expected: u32,
    },
    /// A layer where no expert was ever chosen.
    #[error("the routing histogram counts nothing in layer {layer}")]
    Empty {
        /// The layer.
        layer: u16,
    },
}
