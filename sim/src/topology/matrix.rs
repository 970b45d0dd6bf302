//! Path classes between devices, as a whole: on a tree they are an ultrametric, which fills gaps and finds contradictions.

use super::evidence::Classes;
use crate::machine::PathClass;
use std::sync::LazyLock;

/// Classes of every pair of `n` devices.
#[derive(Clone, Debug)]
pub(super) struct ClassMatrix {
    n: usize,
    cells: Vec<Classes>,
}

/// Three devices whose classes fit no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Misfit(pub(super) usize, pub(super) usize, pub(super) usize);

/// Whether the classes of three pairs fit a tree: the two farthest are equal.
fn fits(a: PathClass, b: PathClass, c: PathClass) -> bool {
    let far = a.max(b).max(c);
    [a, b, c].into_iter().filter(|class| *class == far).count() >= 2
}

/// What a pair may be beside two others, by their sets of classes as bits.
static BESIDE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let beside = |a: Classes, b: Classes| {
        let fit = |c: &PathClass| a.iter().any(|x| b.iter().any(|y| fits(*c, x, y)));
        Classes::of(&Classes::PCIE.into_iter().filter(fit).collect::<Vec<_>>()).bits()
    };
    (0..32u8).flat_map(|a| (0..32u8).map(move |b| (a, b))).map(|(a, b)| beside(Classes::from_bits(a), Classes::from_bits(b))).collect()
});

fn beside(a: Classes, b: Classes) -> Classes {
    Classes::from_bits(BESIDE[usize::from(a.bits()) * 32 + usize::from(b.bits())])
}

impl ClassMatrix {
    /// Nothing known.
    pub(super) fn open(n: usize) -> Self {
        Self { n, cells: vec![Classes::any(); n * n] }
    }
    pub(super) fn get(&self, a: usize, b: usize) -> Classes {
        self.cells[a * self.n + b]
    }
    pub(super) fn set(&mut self, a: usize, b: usize, classes: Classes) {
        self.cells[a * self.n + b] = classes;
        self.cells[b * self.n + a] = classes;
    }

    /// The same with device `i` called `names[i]`; `names` is a permutation.
    pub(super) fn renamed(&self, names: &[usize]) -> Self {
        let mut out = Self::open(self.n);
        for a in 0..self.n {
            for b in 0..self.n {
                out.set(names[a], names[b], self.get(a, b));
            }
        }
        out
    }

    /// Strikes out what fits no tree until nothing changes.
    pub(super) fn tighten(&mut self) -> Result<(), Misfit> {
        let all = (0..self.n).flat_map(|a| (a + 1..self.n).map(move |b| (a, b))).collect();
        self.follow(all)
    }

    /// Strikes out what no longer fits beside changed pairs, and so on.
    fn follow(&mut self, mut changed: Vec<(usize, usize)>) -> Result<(), Misfit> {
        while let Some((a, b)) = changed.pop() {
            for k in (0..self.n).filter(|k| *k != a && *k != b) {
                for (x, y) in [(a, b), (b, a)] {
                    let open = self.get(x, k);
                    let less = open.and(beside(self.get(a, b), self.get(y, k)));
                    if less.is_empty() {
                        return Err(Misfit(x.min(k), x.max(k), y));
                    }
                    // Each change strikes out one of five classes at least, so this ends.
                    if less != open {
                        self.set(x, k, less);
                        changed.push((x, k));
                    }
                }
            }
        }
        Ok(())
    }

    /// Chooses a class for every open pair by `choose`, in order, keeping what was chosen before.
    pub(super) fn settle(&mut self, choose: impl Fn(usize, usize, Classes) -> PathClass) -> Result<Vec<(usize, usize)>, Misfit> {
        let mut chosen = Vec::new();
        self.tighten()?;
        for a in 0..self.n {
            for b in a + 1..self.n {
                let open = self.get(a, b);
                if open.single().is_some() {
                    continue;
                }
                let wanted = choose(a, b, open);
                // A class that fits nothing leaves the next one: an open pair has one that fits.
                for class in std::iter::once(wanted).chain(open.iter().filter(|other| *other != wanted)) {
                    let mut tried = self.clone();
                    tried.set(a, b, Classes::of(&[class]));
                    if tried.follow(vec![(a, b)]).is_ok() {
                        *self = tried;
                        chosen.push((a, b));
                        break;
                    }
                }
                if self.get(a, b).single().is_none() {
                    return Err(Misfit(a, b, a));
                }
            }
        }
        Ok(chosen)
    }

    /// Groups of devices that are nearer to each other than `limit`, of those in `among`, each in order.
    pub(super) fn groups(&self, among: &[usize], limit: PathClass) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &device in among {
            let near = |group: &Vec<usize>| self.get(group[0], device).farthest().is_some_and(|class| class < limit);
            match groups.iter_mut().find(|group| near(group)) {
                Some(group) => group.push(device),
                None => groups.push(vec![device]),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PathClass::{Node, Phb, Pix, Pxb, Sys};

    #[test]
    fn two_known_pairs_fix_the_third() {
        let mut matrix = ClassMatrix::open(3);
        matrix.set(0, 2, Classes::of(&[Pxb]));
        matrix.set(1, 2, Classes::of(&[Pix]));
        matrix.tighten().expect("a tree");
        assert_eq!(matrix.get(0, 1).single(), Some(Pxb));
        let mut matrix = ClassMatrix::open(3);
        matrix.set(0, 2, Classes::of(&[Pix]));
        matrix.set(1, 2, Classes::of(&[Pix]));
        matrix.tighten().expect("a tree");
        assert_eq!(matrix.get(0, 1).single(), Some(Pix));
    }

    #[test]
    fn no_tree_has_two_near_pairs_and_a_far_one() {
        let mut matrix = ClassMatrix::open(3);
        matrix.set(0, 1, Classes::of(&[Pix]));
        matrix.set(1, 2, Classes::of(&[Pix]));
        matrix.set(0, 2, Classes::of(&[Sys]));
        assert!(matrix.tighten().is_err());
    }

    #[test]
    fn open_pairs_are_settled_as_asked_where_that_fits() {
        let mut matrix = ClassMatrix::open(4);
        matrix.set(0, 1, Classes::of(&[Phb, Node]));
        matrix.set(2, 3, Classes::of(&[Phb, Node]));
        matrix.set(0, 2, Classes::of(&[Sys]));
        let chosen = matrix.settle(|_, _, open| open.farthest().expect("not empty")).expect("settles");
        assert_eq!(chosen, [(0, 1), (2, 3)]);
        assert_eq!((matrix.get(0, 1).single(), matrix.get(1, 3).single()), (Some(Node), Some(Sys)));
        assert_eq!(matrix.groups(&[0, 1, 2, 3], Sys), [vec![0, 1], vec![2, 3]]);
    }
}
