//! Loads of a routing that was seen, token by token.

use super::{Load, RoutingLoad, RoutingQuery};
use std::collections::{BTreeMap, BTreeSet};

/// The experts that the tokens of one step chose, by layer. Layers that were not seen are asked of `rest`.
pub struct RecordedRouting<R> {
    layers: BTreeMap<u16, Vec<i32>>,
    rest: R,
}

impl<R: RoutingLoad> RecordedRouting<R> {
    /// Of each layer the chosen experts, token by token; a negative number is an empty slot.
    pub fn new(layers: BTreeMap<u16, Vec<i32>>, rest: R) -> Self {
        Self { layers, rest }
    }
}

impl<R: RoutingLoad> RoutingLoad for RecordedRouting<R> {
    fn load(&self, query: &RoutingQuery<'_>, index: u32) -> Load {
        let chosen = self
            .layers
            .get(&query.layer)
            .filter(|ids| query.placement.is_none() && ids.len() as u64 == query.tokens * u64::from(query.topk));
        let Some(chosen) = chosen else { return self.rest.load(query, index) };
        let width = (query.experts / query.parts.max(1)).max(1);
        let mine = |id: &&i32| u32::try_from(**id).is_ok_and(|id| id / width == index);
        let distinct: BTreeSet<i32> = chosen.iter().filter(mine).copied().collect();
        let rows = chosen.chunks(query.topk.max(1) as usize).filter(|token| token.iter().any(|id| mine(&id))).count();
        Load { distinct: distinct.len() as u64, pairs: chosen.iter().filter(mine).count() as u64, rows: rows as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;
    impl RoutingLoad for Nobody {
        fn load(&self, _: &RoutingQuery<'_>, _: u32) -> Load {
            Load::default()
        }
    }

    #[test]
    fn loads_are_those_of_the_tokens_seen() {
        // Three tokens choose two of eight experts each.
        let seen = BTreeMap::from([(3, vec![0, 5, 5, 4, 1, 0])]);
        let routing = RecordedRouting::new(seen, Nobody);
        let query =
            |layer, parts, tokens| RoutingQuery { layer, tokens, topk: 2, experts: 8, groups: 1, topk_groups: 1, parts, placement: None };
        assert_eq!(routing.load(&query(3, 1, 3), 0), Load { distinct: 4, pairs: 6, rows: 3 });
        assert_eq!(routing.load(&query(3, 2, 3), 0), Load { distinct: 2, pairs: 3, rows: 2 });
        assert_eq!(routing.load(&query(3, 2, 3), 1), Load { distinct: 2, pairs: 3, rows: 2 });
        // Another layer, or another number of tokens, was not seen.
        assert_eq!(routing.load(&query(4, 1, 3), 0), Load::default());
        assert_eq!(routing.load(&query(3, 1, 4), 0), Load::default());
    }
}
