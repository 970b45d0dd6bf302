//! Every op of the reference against hand-computed or published values and against a naive oracle written another way.

mod by_hand;
mod collectives;
mod context;
mod elementwise;
mod errors;
mod gqa;
mod harness;
mod linear;
mod mla;
mod moe;
