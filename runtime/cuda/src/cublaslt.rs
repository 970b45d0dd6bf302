//! cuBLASLt's matrix product, from whatever file holds it: bf16 operands, sums in f32, the algorithm chosen once a shape.
#![allow(unsafe_code)]

use crate::exec::gpu::{GpuError, WORKSPACE_BYTES};
use crate::library::{Library, OpenError};
use crate::search::{CUBLASLT, Search};
use cudarc::cublaslt::sys;
use moetwin_kernels::launch::DenseProduct;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `CUBLAS_OP_T` of cublas_api.h, which cudarc has with cuBLAS only.
const TRANSPOSED: i32 = 1;

type Code = sys::cublasStatus_t;
type Raw = *mut c_void;
type Read = *const c_void;

/// The table of cuBLASLt functions.
pub struct CublasLt {
    library: Library,
    functions: Functions,
}

/// Functions of cublasLt.h, with their signatures there.
struct Functions {
    create: unsafe extern "C" fn(*mut sys::cublasLtHandle_t) -> Code,
    destroy: unsafe extern "C" fn(sys::cublasLtHandle_t) -> Code,
    desc_create: unsafe extern "C" fn(*mut sys::cublasLtMatmulDesc_t, sys::cublasComputeType_t, sys::cudaDataType_t) -> Code,
    desc_destroy: unsafe extern "C" fn(sys::cublasLtMatmulDesc_t) -> Code,
    desc_set: unsafe extern "C" fn(sys::cublasLtMatmulDesc_t, sys::cublasLtMatmulDescAttributes_t, Read, usize) -> Code,
    layout_create: unsafe extern "C" fn(*mut sys::cublasLtMatrixLayout_t, sys::cudaDataType_t, u64, u64, i64) -> Code,
    layout_destroy: unsafe extern "C" fn(sys::cublasLtMatrixLayout_t) -> Code,
    preference_create: unsafe extern "C" fn(*mut sys::cublasLtMatmulPreference_t) -> Code,
    preference_destroy: unsafe extern "C" fn(sys::cublasLtMatmulPreference_t) -> Code,
    preference_set: unsafe extern "C" fn(sys::cublasLtMatmulPreference_t, sys::cublasLtMatmulPreferenceAttributes_t, Read, usize) -> Code,
    heuristic: unsafe extern "C" fn(
        sys::cublasLtHandle_t,
        sys::cublasLtMatmulDesc_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatmulPreference_t,
        c_int,
        *mut sys::cublasLtMatmulHeuristicResult_t,
        *mut c_int,
    ) -> Code,
    matmul: unsafe extern "C" fn(
        sys::cublasLtHandle_t,
        sys::cublasLtMatmulDesc_t,
        Read,
        Read,
        sys::cublasLtMatrixLayout_t,
        Read,
        sys::cublasLtMatrixLayout_t,
        Read,
        Read,
        sys::cublasLtMatrixLayout_t,
        Raw,
        sys::cublasLtMatrixLayout_t,
        *const sys::cublasLtMatmulAlgo_t,
        Raw,
        usize,
        Raw,
    ) -> Code,
}

impl Functions {
    fn load(library: &Library) -> Result<Self, OpenError> {
        // SAFETY: each field's type is the signature of its symbol in cublasLt.h 13.0.
        unsafe {
            Ok(Self {
                create: library.function("cublasLtCreate")?,
                destroy: library.function("cublasLtDestroy")?,
                desc_create: library.function("cublasLtMatmulDescCreate")?,
                desc_destroy: library.function("cublasLtMatmulDescDestroy")?,
                desc_set: library.function("cublasLtMatmulDescSetAttribute")?,
                layout_create: library.function("cublasLtMatrixLayoutCreate")?,
                layout_destroy: library.function("cublasLtMatrixLayoutDestroy")?,
                preference_create: library.function("cublasLtMatmulPreferenceCreate")?,
                preference_destroy: library.function("cublasLtMatmulPreferenceDestroy")?,
                preference_set: library.function("cublasLtMatmulPreferenceSetAttribute")?,
                heuristic: library.function("cublasLtMatmulAlgoGetHeuristic")?,
                matmul: library.function("cublasLtMatmul")?,
            })
        }
    }
}

impl CublasLt {
    /// Finds and opens cuBLASLt.
    pub fn open(search: &Search) -> Result<Self, OpenError> {
        let library = Library::open(&CUBLASLT, search)?;
        let functions = Functions::load(&library)?;
        Ok(Self { library, functions })
    }
    /// The library it came from.
    pub fn library(&self) -> &Library {
        &self.library
    }
}

fn ok(call: &'static str, code: Code) -> Result<(), GpuError> {
    match code {
        Code::CUBLAS_STATUS_SUCCESS => Ok(()),
        code => Err(GpuError::new(call, format!("{code:?}"))),
    }
}

/// A shape's description and its algorithm.
struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// cuBLASLt for the GPU of the calling thread. What it made is destroyed by [`Products::close`].
pub(crate) struct Products {
    table: Arc<CublasLt>,
    handle: sys::cublasLtHandle_t,
    plans: BTreeMap<DenseProduct, Option<Plan>>,
}

impl Products {
    /// For the current context.
    pub(crate) fn new(table: Arc<CublasLt>) -> Result<Self, GpuError> {
        let mut handle: sys::cublasLtHandle_t = std::ptr::null_mut();
        // SAFETY: the call writes one handle, for the thread's current context.
        ok("cublasLtCreate", unsafe { (table.functions.create)(&raw mut handle) })?;
        Ok(Self { table, handle, plans: BTreeMap::new() })
    }
    /// Chooses the algorithm of a shape, once; whether there is one.
    pub(crate) fn plan(&mut self, product: &DenseProduct) -> Result<bool, GpuError> {
        if !self.plans.contains_key(product) {
            let plan = self.made(product)?;
            self.plans.insert(*product, plan);
        }
        Ok(self.plans.get(product).is_some_and(Option::is_some))
    }
    /// `y = x w^T (+ bias)` at these addresses, on a stream; whether it was issued.
    pub(crate) fn run(
        &mut self,
        product: &DenseProduct,
        [x, w, bias, y]: [u64; 4],
        workspace: u64,
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<bool, GpuError> {
        let Some(Some(plan)) = self.plans.get(product) else { return Ok(false) };
        let f = &self.table.functions;
        if product.biased {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            // SAFETY: the attribute is a device address; it is read when the product is issued.
            ok("cublasLtMatmulDescSetAttribute", unsafe { (f.desc_set)(plan.desc, attribute, (&raw const bias).cast(), 8) })?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let [weights, rows, results] = plan.layouts;
        let raw = |address: u64| address as Raw;
        // SAFETY: addresses are device memory of this rank of the sizes that the layouts give; the scalars are read before the call returns;
        // the workspace is this stream's own.
        let code = unsafe {
            (f.matmul)(
                self.handle,
                plan.desc,
                (&raw const one).cast(),
                raw(w),
                weights,
                raw(x),
                rows,
                (&raw const zero).cast(),
                raw(y),
                results,
                raw(y),
                results,
                &raw const plan.algorithm,
                raw(workspace),
                WORKSPACE_BYTES as usize,
                stream.cast(),
            )
        };
        ok("cublasLtMatmul", code).map(|()| true)
    }
    /// Column-major, as the library counts: `y^T [n, rows] = (w [k, n])^T x^T [k, rows]`.
    fn made(&self, product: &DenseProduct) -> Result<Option<Plan>, GpuError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let f = &self.table.functions;
        let (bf16, single) = (sys::cudaDataType_t::CUDA_R_16BF, sys::cudaDataType_t::CUDA_R_32F);
        let mut desc: sys::cublasLtMatmulDesc_t = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        ok("cublasLtMatmulDescCreate", unsafe { (f.desc_create)(&raw mut desc, sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, single) })?;
        let mut layouts = [std::ptr::null_mut(); 3];
        let sizes = [(product.k, product.n, product.k), (product.k, product.rows, product.k), (product.n, product.rows, product.n)];
        for (layout, (rows, cols, stride)) in layouts.iter_mut().zip(sizes) {
            let stride = i64::try_from(stride).map_err(|e| GpuError::new("cuBLASLt", e.to_string()))?;
            // SAFETY: the call writes one handle.
            ok("cublasLtMatrixLayoutCreate", unsafe { (f.layout_create)(layout, bf16, rows, cols, stride) })?;
        }
        let set = |attribute, value: i32| {
            // SAFETY: both attributes that are set so are 32-bit enums.
            ok("cublasLtMatmulDescSetAttribute", unsafe { (f.desc_set)(desc, attribute, (&raw const value).cast(), 4) })
        };
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED)?;
        if product.biased {
            set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as i32)?;
        }
        let algorithm = self.choose(desc, layouts)?;
        let plan = algorithm.map(|algorithm| Plan { desc, layouts, algorithm });
        if plan.is_none() {
            self.destroy(desc, layouts);
        }
        Ok(plan)
    }
    /// What the library's heuristic holds fastest, which is the same in every run.
    fn choose(
        &self,
        desc: sys::cublasLtMatmulDesc_t,
        [weights, rows, results]: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>, GpuError> {
        let f = &self.table.functions;
        let mut preference: sys::cublasLtMatmulPreference_t = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        ok("cublasLtMatmulPreferenceCreate", unsafe { (f.preference_create)(&raw mut preference) })?;
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the attribute is a 64-bit number.
        ok("cublasLtMatmulPreferenceSetAttribute", unsafe { (f.preference_set)(preference, attribute, (&raw const bytes).cast(), 8) })?;
        let mut found = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let mut count: c_int = 0;
        // SAFETY: all handles are alive; room for one result and one count is given.
        let code =
            unsafe { (f.heuristic)(self.handle, desc, weights, rows, results, results, preference, 1, found.as_mut_ptr(), &raw mut count) };
        // SAFETY: made above, destroyed once.
        unsafe { (f.preference_destroy)(preference) };
        if code == Code::CUBLAS_STATUS_NOT_SUPPORTED || count == 0 {
            return Ok(None);
        }
        ok("cublasLtMatmulAlgoGetHeuristic", code)?;
        // SAFETY: the library has written the one result that it counts.
        Ok(Some(unsafe { found.assume_init() }.algo))
    }
    fn destroy(&self, desc: sys::cublasLtMatmulDesc_t, layouts: [sys::cublasLtMatrixLayout_t; 3]) {
        let f = &self.table.functions;
        // SAFETY: made by this table, destroyed once.
        unsafe {
            for layout in layouts {
                (f.layout_destroy)(layout);
            }
            (f.desc_destroy)(desc);
        }
    }
    /// Ends what was made; the streams are idle.
    pub(crate) fn close(mut self) {
        for plan in std::mem::take(&mut self.plans).into_values().flatten() {
            self.destroy(plan.desc, plan.layouts);
        }
        // SAFETY: made by this table, destroyed once.
        unsafe { (self.table.functions.destroy)(self.handle) };
    }
}
