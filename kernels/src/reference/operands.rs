//! Checked access to operands and results: every shape is tested before anything is computed.

use super::array::{Array, Data};
use super::error::ReferenceError;
use super::real::Real;
use ndarray::{ArrayView2, ArrayViewMut2};

/// The operands of one op, under its name.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) op: &'static str,
    inputs: &'a [&'a Array<T>],
}

/// A vector, matrix or stack of matrices of real numbers.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: &'a [T],
}

impl<'a, T: Real> Matrix<'a, T> {
    pub(super) fn view(&self) -> ArrayView2<'a, T> {
        ArrayView2::from_shape((self.rows, self.cols), self.data).expect("operand lengths are checked against their sizes")
    }
    pub(super) fn row(&self, row: usize) -> &'a [T] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
}

/// Several matrices of one shape.
#[derive(Clone, Copy)]
pub(super) struct Stack<'a, T> {
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    data: &'a [T],
}

impl<'a, T: Real> Stack<'a, T> {
    pub(super) fn matrix(&self, index: usize) -> Matrix<'a, T> {
        let size = self.rows * self.cols;
        Matrix { rows: self.rows, cols: self.cols, data: &self.data[index * size..(index + 1) * size] }
    }
}

/// A matrix of ids.
#[derive(Clone, Copy)]
pub(super) struct Ids<'a> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: &'a [i32],
}

impl<'a> Ids<'a> {
    pub(super) fn row(&self, row: usize) -> &'a [i32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
}

impl<'a, T: Real> Operands<'a, T> {
    pub(super) fn new(op: &'static str, inputs: &'a [&'a Array<T>]) -> Self {
        Self { op, inputs }
    }
    pub(super) fn len(&self) -> usize {
        self.inputs.len()
    }
    /// Errors unless there are between `least` and `most` operands.
    pub(super) fn expect(&self, least: usize, most: usize) -> Result<(), ReferenceError> {
        if (least..=most).contains(&self.inputs.len()) {
            return Ok(());
        }
        let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
        Err(ReferenceError::Arity { op: self.op, what: "operands", got: self.inputs.len(), expected })
    }
    /// Errors unless operand `index` is the vacated array: its storage is handed over as a result.
    pub(super) fn expect_vacated(&self, index: usize, operand: &'static str) -> Result<(), ReferenceError> {
        if self.inputs[index].is_vacated() {
            return Ok(());
        }
        Err(self.wrong(operand, self.inputs[index], "vacated: it is updated in place and handed over as the result"))
    }
    pub(super) fn matrix(&self, index: usize, operand: &'static str) -> Result<Matrix<'a, T>, ReferenceError> {
        let (data, sizes) = self.real(index, operand, 2)?;
        Ok(Matrix { rows: sizes[0], cols: sizes[1], data })
    }
    pub(super) fn matrix_of(&self, index: usize, operand: &'static str, rows: usize, cols: usize) -> Result<Matrix<'a, T>, ReferenceError> {
        let m = self.matrix(index, operand)?;
        if (m.rows, m.cols) == (rows, cols) { Ok(m) } else { Err(self.wrong(operand, self.inputs[index], format!("[{rows}, {cols}]"))) }
    }
    pub(super) fn matrix_with_cols(&self, index: usize, operand: &'static str, cols: usize) -> Result<Matrix<'a, T>, ReferenceError> {
        let m = self.matrix(index, operand)?;
        if m.cols == cols { Ok(m) } else { Err(self.wrong(operand, self.inputs[index], format!("[_, {cols}]"))) }
    }
    pub(super) fn vector(&self, index: usize, operand: &'static str) -> Result<&'a [T], ReferenceError> {
        Ok(self.real(index, operand, 1)?.0)
    }
    pub(super) fn vector_of(&self, index: usize, operand: &'static str, len: usize) -> Result<&'a [T], ReferenceError> {
        let v = self.vector(index, operand)?;
        if v.len() == len { Ok(v) } else { Err(self.wrong(operand, self.inputs[index], format!("[{len}]"))) }
    }
    pub(super) fn stack(&self, index: usize, operand: &'static str) -> Result<Stack<'a, T>, ReferenceError> {
        let (data, sizes) = self.real(index, operand, 3)?;
        Ok(Stack { count: sizes[0], rows: sizes[1], cols: sizes[2], data })
    }
    pub(super) fn stack_of(&self, index: usize, operand: &'static str, sizes: [usize; 3]) -> Result<Stack<'a, T>, ReferenceError> {
        let s = self.stack(index, operand)?;
        if [s.count, s.rows, s.cols] == sizes { Ok(s) } else { Err(self.wrong(operand, self.inputs[index], format!("{sizes:?}"))) }
    }
    pub(super) fn ids(&self, index: usize, operand: &'static str) -> Result<Ids<'a>, ReferenceError> {
        let array = self.inputs[index];
        match (&array.data, array.sizes.as_slice()) {
            (Data::Int(data), &[n]) if data.len() == n => Ok(Ids { rows: n, cols: 1, data }),
            (Data::Int(data), &[rows, cols]) if data.len() == rows * cols => Ok(Ids { rows, cols, data }),
            _ => Err(self.wrong(operand, array, "ids of one or two dimensions")),
        }
    }
    /// One id a row.
    pub(super) fn id_vector(&self, index: usize, operand: &'static str, len: usize) -> Result<&'a [i32], ReferenceError> {
        let ids = self.ids(index, operand)?;
        if ids.cols == 1 && ids.rows == len { Ok(ids.data) } else { Err(self.wrong(operand, self.inputs[index], format!("{len} ids"))) }
    }
    /// Positions of `len` tokens.
    pub(super) fn positions(&self, index: usize, len: usize) -> Result<&'a [i32], ReferenceError> {
        let positions = self.id_vector(index, "positions", len)?;
        match positions.iter().position(|p| *p < 0) {
            None => Ok(positions),
            Some(row) => Err(self.value("positions", row, format!("position {} is negative", positions[row]))),
        }
    }
    pub(super) fn wrong(&self, operand: &'static str, array: &Array<T>, expected: impl Into<String>) -> ReferenceError {
        ReferenceError::Operand { op: self.op, operand, got: describe(array), expected: expected.into() }
    }
    pub(super) fn value(&self, operand: &'static str, row: usize, problem: impl Into<String>) -> ReferenceError {
        ReferenceError::Value { op: self.op, operand, row, problem: problem.into() }
    }
    /// An operand whose inner structure does not add up.
    pub(super) fn mismatch(&self, index: usize, operand: &'static str, expected: impl Into<String>) -> ReferenceError {
        self.wrong(operand, self.inputs[index], expected)
    }
    fn real(&self, index: usize, operand: &'static str, dims: usize) -> Result<(&'a [T], &'a [usize]), ReferenceError> {
        let array = self.inputs[index];
        match &array.data {
            Data::Real(data) if array.sizes.len() == dims && data.len() == array.sizes.iter().product::<usize>() => {
                Ok((data, &array.sizes))
            }
            _ => Err(self.wrong(operand, array, format!("real numbers of {dims} dimensions"))),
        }
    }
    /// The results of the op, exactly `N`.
    pub(super) fn results<'b, const N: usize>(&self, outputs: &'b mut [Array<T>]) -> Result<&'b mut [Array<T>; N], ReferenceError> {
        let got = outputs.len();
        <&mut [Array<T>; N]>::try_from(outputs).map_err(|_| ReferenceError::Arity {
            op: self.op,
            what: "results",
            got,
            expected: N.to_string(),
        })
    }
    /// The storage of a `[rows, cols]` result.
    pub(super) fn result<'b>(
        &self,
        array: &'b mut Array<T>,
        name: &'static str,
        rows: usize,
        cols: usize,
    ) -> Result<&'b mut [T], ReferenceError> {
        self.result_sized(array, name, &[rows, cols])
    }
    /// The storage of a result of real numbers.
    pub(super) fn result_sized<'b>(
        &self,
        array: &'b mut Array<T>,
        name: &'static str,
        sizes: &[usize],
    ) -> Result<&'b mut [T], ReferenceError> {
        if array.sizes != sizes || array.data.len() != sizes.iter().product::<usize>() || array.as_real().is_none() {
            return Err(self.wrong(name, array, format!("real numbers {sizes:?}")));
        }
        match &mut array.data {
            Data::Real(data) => Ok(data),
            Data::Int(_) => unreachable!("tested above"),
        }
    }
    /// The storage of a result of ids, `[rows]` or `[rows, cols]`.
    pub(super) fn id_result<'b>(
        &self,
        array: &'b mut Array<T>,
        name: &'static str,
        sizes: &[usize],
    ) -> Result<&'b mut [i32], ReferenceError> {
        if array.sizes != sizes || array.data.len() != sizes.iter().product::<usize>() || array.as_int().is_none() {
            return Err(self.wrong(name, array, format!("ids {sizes:?}")));
        }
        match &mut array.data {
            Data::Int(data) => Ok(data),
            Data::Real(_) => unreachable!("tested above"),
        }
    }
}

/// A mutable matrix over a checked slice.
pub(super) fn view_mut<T: Real>(data: &mut [T], rows: usize, cols: usize) -> ArrayViewMut2<'_, T> {
    ArrayViewMut2::from_shape((rows, cols), data).expect("result lengths are checked against their sizes")
}

fn describe<T>(array: &Array<T>) -> String {
    let kind = match array.data {
        Data::Real(_) => "real numbers",
        Data::Int(_) => "ids",
    };
    if array.data.len() == array.sizes.iter().product::<usize>() {
        format!("{kind} {:?}", array.sizes)
    } else {
        format!("{kind} {:?} with {} elements", array.sizes, array.data.len())
    }
}
