//! The machine's tree: NUMA nodes, host bridges, switches, GPUs, from a file's tree and from classes.

use super::Kind;
use super::evidence::{Classes, Part, SwitchSeen, Told, TreeNode};
use super::matrix::ClassMatrix;
use crate::machine::PathClass;

/// What hangs below a host bridge or a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Child {
    Gpu(usize),
    Switch(SwitchShape),
}

/// A switch with what is below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SwitchShape {
    pub(super) seen: SwitchSeen,
    /// Generation and lanes towards the host, where told.
    pub(super) link: Option<(u8, u8)>,
    pub(super) children: Vec<Child>,
}

/// A host bridge with what is below its root ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) children: Vec<Child>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numa {
    pub(super) hosts: Vec<Host>,
}

impl Child {
    pub(super) fn gpus(&self) -> Vec<usize> {
        match self {
            Child::Gpu(gpu) => vec![*gpu],
            Child::Switch(switch) => switch.children.iter().flat_map(Child::gpus).collect(),
        }
    }
}

impl Host {
    fn gpus(&self) -> Vec<usize> {
        self.children.iter().flat_map(Child::gpus).collect()
    }
}

impl Numa {
    pub(super) fn gpus(&self) -> Vec<usize> {
        self.hosts.iter().flat_map(Host::gpus).collect()
    }
}

/// From a node up to its root.
fn above(tree: &[TreeNode], node: usize) -> Vec<usize> {
    let mut out = vec![node];
    let mut at = node;
    // Parents come first, so this ends.
    while let Some(parent) = tree[at].parent.filter(|parent| *parent < at) {
        out.push(parent);
        at = parent;
    }
    out
}

/// The classes that a file's tree gives to pairs of GPUs.
pub(super) fn tree_classes(tree: &[TreeNode], kind: Kind) -> Vec<(usize, usize, Told<Classes>)> {
    let gpus: Vec<(usize, usize)> =
        tree.iter().enumerate().filter_map(|(node, n)| if let Part::Gpu(gpu) = n.part { Some((gpu, node)) } else { None }).collect();
    let mut out = Vec::new();
    for (i, &(a, left)) in gpus.iter().enumerate() {
        for &(b, right) in &gpus[i + 1..] {
            let (up, other) = (above(tree, left), above(tree, right));
            let join = up.iter().find(|node| other.contains(node)).copied();
            let switches = |chain: &[usize]| {
                chain.iter().take_while(|node| Some(**node) != join).filter(|node| matches!(tree[**node].part, Part::Switch(_))).count()
            };
            let classes = match join.map(|node| &tree[node].part) {
                Some(Part::Switch(_)) if switches(&up) + switches(&other) == 0 => Classes::of(&[PathClass::Pix]),
                Some(Part::Switch(_)) => Classes::of(&[PathClass::Pxb]),
                Some(Part::Host) => Classes::of(&[PathClass::Phb]),
                // NCCL's file has no host bridges.
                Some(Part::Numa(Some(_))) if kind == Kind::NcclTopology => Classes::range(PathClass::Phb, PathClass::Node),
                Some(Part::Numa(Some(_))) => Classes::of(&[PathClass::Node]),
                Some(Part::Numa(None)) if kind == Kind::NcclTopology => Classes::range(PathClass::Phb, PathClass::Sys),
                Some(Part::Numa(None)) => Classes::range(PathClass::Node, PathClass::Sys),
                Some(Part::Gpu(_)) | None => Classes::of(&[PathClass::Sys]),
            };
            out.push((a, b, Told { value: classes, place: tree[right].place.clone() }));
        }
    }
    out
}

/// The machine's tree from one class for every pair, and a file's tree where there is one.
pub(super) fn shape(matrix: &ClassMatrix, n: usize, tree: Option<&[TreeNode]>) -> Vec<Numa> {
    let hosts = match tree {
        Some(tree) => tree_hosts(tree, matrix),
        None => matrix
            .groups(&(0..n).collect::<Vec<_>>(), PathClass::Node)
            .into_iter()
            .map(|group| Host { children: children(matrix, &group) })
            .collect(),
    };
    let mut numas: Vec<Numa> = Vec::new();
    for host in hosts {
        let Some(&gpu) = host.gpus().first() else { continue };
        let near = |numa: &Numa| {
            numa.gpus().first().is_some_and(|first| matrix.get(*first, gpu).farthest().is_some_and(|class| class < PathClass::Sys))
        };
        match numas.iter_mut().find(|numa| near(numa)) {
            Some(numa) => numa.hosts.push(host),
            None => numas.push(Numa { hosts: vec![host] }),
        }
    }
    numas
}

/// Below one host bridge: GPUs that share switches stand behind one, two levels of them where classes say so.
fn children(matrix: &ClassMatrix, group: &[usize]) -> Vec<Child> {
    let plain = |children: Vec<Child>| Child::Switch(SwitchShape { seen: SwitchSeen::default(), link: None, children });
    let gpus = |group: Vec<usize>| group.into_iter().map(Child::Gpu).collect::<Vec<_>>();
    let mut out = Vec::new();
    for far in matrix.groups(group, PathClass::Phb) {
        let mut leaves = matrix.groups(&far, PathClass::Pxb);
        match (leaves.len(), far.len()) {
            (1, 1) => out.extend(gpus(far)),
            (1, _) => out.push(plain(gpus(leaves.remove(0)))),
            _ => out.push(plain(leaves.into_iter().map(|leaf| plain(gpus(leaf))).collect())),
        }
    }
    out
}

/// Host bridges of a file's tree. A file without them (NCCL's) leaves to the classes who shares one.
fn tree_hosts(tree: &[TreeNode], matrix: &ClassMatrix) -> Vec<Host> {
    let below = |node: usize| -> Vec<usize> { (0..tree.len()).filter(|child| tree[*child].parent == Some(node)).collect() };
    let mut hosts: Vec<Host> = Vec::new();
    for (node, seen) in tree.iter().enumerate() {
        match &seen.part {
            Part::Host => hosts.push(Host { children: below(node).into_iter().filter_map(|child| grown(tree, child)).collect() }),
            Part::Numa(_) => {
                for child in below(node).into_iter().filter_map(|child| grown(tree, child)) {
                    let Some(&gpu) = child.gpus().first() else { continue };
                    let near = |host: &Host| {
                        host.gpus()
                            .first()
                            .is_some_and(|first| matrix.get(*first, gpu).farthest().is_some_and(|class| class < PathClass::Node))
                    };
                    match hosts.iter_mut().find(|host| near(host)) {
                        Some(host) => host.children.push(child),
                        None => hosts.push(Host { children: vec![child] }),
                    }
                }
            }
            Part::Switch(_) | Part::Gpu(_) => {}
        }
    }
    hosts.retain(|host| !host.gpus().is_empty());
    hosts.sort_by_key(|host| host.gpus().into_iter().min());
    hosts
}

/// A node with what is below it, if a GPU is.
fn grown(tree: &[TreeNode], node: usize) -> Option<Child> {
    match &tree[node].part {
        Part::Gpu(gpu) => Some(Child::Gpu(*gpu)),
        Part::Switch(seen) => {
            let children: Vec<Child> =
                (node + 1..tree.len()).filter(|child| tree[*child].parent == Some(node)).filter_map(|child| grown(tree, child)).collect();
            (!children.is_empty()).then(|| Child::Switch(SwitchShape { seen: seen.clone(), link: tree[node].link, children }))
        }
        Part::Host | Part::Numa(_) => None,
    }
}
