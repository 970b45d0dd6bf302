//! The rules, each with a name and a reason.

/// A rule of the verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The deployment is one.
    Deployment,
    /// Ids exist.
    Ids,
    /// Every tensor has the producer it names.
    Producer,
    /// Producers come before consumers.
    Order,
    /// Names are unique.
    Names,
    /// Ops have the operands and results of their kind.
    Operands,
    /// Caches are updated in one chain.
    Cache,
    /// Sizes can be computed with.
    Size,
    /// Shapes are those of the op.
    Shape,
    /// Element types are those of the op.
    ElementType,
    /// Layouts make sense by themselves.
    Axes,
    /// Dimensions can be cut as their layouts say.
    Split,
    /// Layouts are those of the op.
    Layout,
    /// Sums are taken before they are used.
    Partial,
    /// Values are used on the stage they are on.
    Stage,
    /// Experts are chosen as they are placed.
    Placement,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 16] = [
        Rule::Deployment,
        Rule::Ids,
        Rule::Producer,
        Rule::Order,
        Rule::Names,
        Rule::Operands,
        Rule::Cache,
        Rule::Size,
        Rule::Shape,
        Rule::ElementType,
        Rule::Axes,
        Rule::Split,
        Rule::Layout,
        Rule::Partial,
        Rule::Stage,
        Rule::Placement,
    ];
    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Deployment => "deployment",
            Rule::Ids => "ids",
            Rule::Producer => "producer",
            Rule::Order => "order",
            Rule::Names => "names",
            Rule::Operands => "operands",
            Rule::Cache => "cache",
            Rule::Size => "size",
            Rule::Shape => "shape",
            Rule::ElementType => "element type",
            Rule::Axes => "axes",
            Rule::Split => "split",
            Rule::Layout => "layout",
            Rule::Partial => "partial sum",
            Rule::Stage => "stage",
            Rule::Placement => "placement",
        }
    }
    /// Why it must hold.
    pub fn why(self) -> &'static str {
        match self {
            Rule::Deployment => "ranks along an axis are found by dividing; sizes that do not divide leave ranks in no group or in two",
            Rule::Ids => "a tensor that does not exist cannot be read or written",
            Rule::Producer => "in single assignment every tensor is the result of exactly one node, or of none for sources",
            Rule::Order => "nodes are carried out in order, so an operand must exist by then",
            Rule::Names => "traces, dumps and reports find tensors by name",
            Rule::Operands => "kernels read operands by position",
            Rule::Cache => "a cache is one storage updated in place: an older value is gone once a newer one is written",
            Rule::Size => "bytes and scale blocks are computed from sizes without overflow and without dividing by zero",
            Rule::Shape => "an op computes nothing sensible from other shapes",
            Rule::ElementType => "buffers are sized and read by element type",
            Rule::Axes => "a layout must say of each rank, and only once, which part it holds",
            Rule::Split => "ranks run the same program on equal parts; heads, experts and scale blocks are never cut",
            Rule::Layout => "each rank computes on what it holds: other layouts give other values",
            Rule::Partial => "a summand is not the sum: only addition, scaling and the reducing collectives may take it",
            Rule::Stage => "ranks of a stage have only what was computed there or sent to them",
            Rule::Placement => "slots and experts are both small integers; taken for each other they pick the wrong weights",
        }
    }
}
