//! Values of a tensor on one rank.

use super::real::Real;
use moetwin_models::DType;

/// Values of a tensor on one rank, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// Local sizes along every dimension.
    pub sizes: Vec<usize>,
    /// Elements, as many as the product of the sizes.
    pub data: Data<T>,
}

/// Elements of an [`Array`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data<T> {
    /// Real numbers.
    Real(Vec<T>),
    /// Ids.
    Int(Vec<i32>),
}

impl<T> Data<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::Real(v) => v.len(),
            Data::Int(v) => v.len(),
        }
    }
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Default for Array<T> {
    /// The vacated array: what stays behind when an executor takes a buffer out to write it. It is no legal operand.
    fn default() -> Self {
        Self { sizes: Vec::new(), data: Data::Real(Vec::new()) }
    }
}

impl<T: Real> Array<T> {
    /// Real numbers of the given sizes.
    pub fn real(sizes: &[usize], data: Vec<T>) -> Self {
        Self { sizes: sizes.to_vec(), data: Data::Real(data) }
    }
    /// Ids of the given sizes.
    pub fn int(sizes: &[usize], data: Vec<i32>) -> Self {
        Self { sizes: sizes.to_vec(), data: Data::Int(data) }
    }
    /// An array nobody has written: NaN, or `i32::MIN` for ids. Every op rejects or propagates them.
    pub fn poisoned(sizes: &[usize], dtype: DType) -> Self {
        let len: usize = sizes.iter().product();
        let data = match dtype {
            DType::I32 => Data::Int(vec![i32::MIN; len]),
            DType::Bf16 | DType::F16 | DType::F32 | DType::Fp8 => Data::Real(vec![T::NAN; len]),
        };
        Self { sizes: sizes.to_vec(), data }
    }
    /// Overwrites every element with the poison of its kind.
    pub fn poison(&mut self) {
        match &mut self.data {
            Data::Real(v) => v.fill(T::NAN),
            Data::Int(v) => v.fill(i32::MIN),
        }
    }
    /// The real elements, `None` for ids.
    pub fn as_real(&self) -> Option<&[T]> {
        match &self.data {
            Data::Real(v) => Some(v),
            Data::Int(_) => None,
        }
    }
    /// The ids, `None` for real numbers.
    pub fn as_int(&self) -> Option<&[i32]> {
        match &self.data {
            Data::Int(v) => Some(v),
            Data::Real(_) => None,
        }
    }
    pub(super) fn is_vacated(&self) -> bool {
        self.sizes.is_empty() && self.data.is_empty()
    }
}
