//! The fixtures of every family hold what their models need; faults put into them are all found; other namings of the same values give
//! the same weights.

use super::{FIXTURES, Folder, fixture, fixture_spec};
use crate::weights::*;
use half::bf16;
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::{BuildOptions, Deployment, Graph, ModelSpec, Phase, RankId, Step, TensorKind, WeightFormat, plan};
use std::collections::BTreeMap;

/// The tensors of a fixture, to be changed.
fn tensors(name: &str) -> Vec<OutTensor> {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let raw = |t: StoredTensor<'_>| OutValues::Raw(t.dtype, t.bytes.to_vec());
    checkpoint.tensors().map(|t| OutTensor { name: t.name.into(), shape: t.shape.to_vec(), values: raw(t) }).collect()
}

fn open(tensors: &[OutTensor], spec: &ModelSpec, layers: Layers) -> Result<CheckpointWeights, CheckpointError> {
    let mut file = Vec::new();
    write_to(&mut file, tensors).unwrap();
    CheckpointWeights::new(Checkpoint::from_bytes("memory", file)?, spec, layers)
}

fn told(tensors: &[OutTensor], spec: &ModelSpec) -> Vec<String> {
    open(tensors, spec, Layers::All).map(|_| Vec::new()).unwrap_or_else(|e| e.faults.iter().map(ToString::to_string).collect())
}

fn find<'t>(tensors: &'t mut [OutTensor], name: &str) -> &'t mut OutTensor {
    tensors.iter_mut().find(|t| t.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn f32s(t: &OutTensor) -> Vec<f32> {
    match &t.values {
        OutValues::Raw(StoredType::Bf16, bytes) => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        OutValues::F32(values) => values.clone(),
        other => panic!("{other:?}"),
    }
}

fn whole_graph(spec: &ModelSpec) -> Graph {
    plan(spec, &Step::uniform(Phase::Decode, 1, 0), &Deployment::single(), &BuildOptions::default()).unwrap()
}

/// Every weight of the model, whole, by the name of its graph tensor.
fn all_values(weights: &CheckpointWeights) -> BTreeMap<String, Array<f32>> {
    let graph = whole_graph(weights.spec());
    let list = graph.tensors.iter().filter(|(_, t)| matches!(t.kind, TensorKind::Weight(_)));
    list.map(|(id, t)| (t.name.clone(), weights.load(&graph, id, RankId(0)).unwrap_or_else(|e| panic!("{e}")))).collect()
}

fn value(arrays: &BTreeMap<String, Array<f32>>, name: &str, index: &[usize]) -> f32 {
    let array = arrays.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", arrays.keys()));
    let at = array.sizes.iter().zip(index).fold(0, |at, (size, i)| at * size + i);
    match &array.data {
        Data::Real(values) => values[at],
        Data::Int(_) => panic!("weights are reals"),
    }
}

#[test]
fn every_fixture_is_complete() {
    for &name in FIXTURES {
        let spec = fixture_spec(name);
        let weights = CheckpointWeights::open(&fixture(name), &spec, Layers::All).unwrap_or_else(|e| panic!("{e}"));
        assert!(weights.checkpoint().len() > 20);
        assert!(all_values(&weights).values().all(|a| matches!(&a.data, Data::Real(v) if v.iter().all(|x| x.is_finite()))));
    }
}

/// Without any one of its tensors no fixture is complete, and the error names that tensor.
#[test]
fn every_tensor_is_needed() {
    for &name in FIXTURES {
        let (spec, all) = (fixture_spec(name), tensors(name));
        // Every seventh, so that each kind of tensor of each layer is left out somewhere and the test stays short.
        for left_out in (0..all.len()).step_by(7) {
            let mut some = all.clone();
            let gone = some.remove(left_out);
            let faults = told(&some, &spec);
            assert!(faults.len() == 1 && faults[0].starts_with(&format!("{}: missing, expected [", gone.name)), "{faults:?}");
        }
    }
}

#[test]
fn one_error_lists_all_that_is_wrong_before_anything_is_computed() {
    let (spec, mut t) = (fixture_spec("tiny-kimi-k2-int4"), tensors("tiny-kimi-k2-int4"));
    t.retain(|t| t.name != "model.norm.weight" && t.name != "model.layers.2.mlp.experts.7.up_proj.weight_scale");
    find(&mut t, "model.layers.0.self_attn.q_a_proj.weight").shape = vec![64, 32];
    let router = find(&mut t, "model.layers.1.mlp.gate.weight");
    let OutValues::Raw(dtype, _) = &mut router.values else { panic!() };
    *dtype = StoredType::I16;
    t.push(OutTensor::f32("model.layers.1.mlp.gate.bias", vec![2], vec![0.0; 2]));
    t.push(OutTensor::i32("lm_head.weight_packed", vec![1], vec![0]));
    assert_eq!(
        told(&t, &spec),
        [
            "model.layers.0.self_attn.q_a_proj.weight: shape [64, 32], expected [32, 64]",
            "model.layers.1.mlp.gate.weight: element type I16, expected one of BF16, F16, F32",
            "model.layers.2.mlp.experts.7.up_proj.weight_scale: missing, expected [64, 2] with one of BF16, F16, F32 (there is \
             model.layers.2.mlp.experts.7.up_proj.weight_packed in I32; does the configuration's quantization match?)",
            "model.norm.weight: missing, expected [64] with one of BF16, F16, F32",
            "lm_head.weight_packed: extra, I32 [1]: the model has no use for it",
            "model.layers.1.mlp.gate.bias: extra, F32 [2]: the model has no use for it",
        ]
    );
}

/// Faults of files and of names come in the same error.
#[test]
fn faults_of_files_and_of_the_model_come_together() {
    let (spec, mut t) = (fixture_spec("tiny-olmoe"), tensors("tiny-olmoe"));
    t.retain(|t| t.name != "model.norm.weight");
    let (one, mut two) = (t[..100].to_vec(), t[100..].to_vec());
    two.push(one[3].clone());
    let folder = Folder::new("together");
    let mut map = serde_json::Map::new();
    for (file, tensors) in [("one.safetensors", &one), ("two.safetensors", &two)] {
        write_safetensors(&folder.0.join(file), tensors).unwrap();
        map.extend(tensors.iter().map(|t| (t.name.clone(), file.into())));
    }
    folder.file(INDEX_FILE, serde_json::json!({ "weight_map": map }).to_string());
    let error = CheckpointWeights::open(&folder.0, &spec, Layers::All).unwrap_err();
    let kinds: Vec<bool> = error.faults.iter().map(|f| matches!(f, Fault::Duplicate { .. })).collect();
    assert_eq!(kinds, [true, false], "{error}");
    assert!(error.to_string().contains("2 faults in the checkpoint\n  ") && error.to_string().contains("model.norm.weight: missing"));
}

#[test]
fn what_other_writers_leave_in_a_checkpoint_is_passed_over() {
    let (spec, mut t) = (fixture_spec("tiny-deepseek-v3"), tensors("tiny-deepseek-v3"));
    let beyond = format!("model.layers.{}.", spec.layers.len());
    let extra = |name: &str| OutTensor::f32(name, vec![1], vec![0.0]);
    t.push(extra("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert!(told(&t, &spec).is_empty());
    // A further layer is one for multi-token prediction only where it carries that projection.
    t.push(extra(&format!("{beyond}self_attn.o_proj.weight")));
    assert_eq!(told(&t, &spec).len(), 1);
    assert!(open(&t, &spec, Layers::First).is_ok());
    t.push(extra(&format!("{beyond}eh_proj.weight")));
    assert!(told(&t, &spec).is_empty());
    // A vision tower belongs to wrappers only.
    t.push(extra("vision_tower.patch_embed.weight"));
    assert_eq!(told(&t, &spec).len(), 1);
}

#[test]
fn a_model_cut_to_its_first_layers_takes_a_whole_checkpoint() {
    let spec = fixture_spec("tiny-deepseek-v3");
    let cut = first_layers(&spec, 2);
    assert_eq!(cut.layers.len(), 2);
    assert!(cut.name.ends_with(&format!("(first 2 of {} layers)", spec.layers.len())));
    assert!(open(&tensors("tiny-deepseek-v3"), &cut, Layers::All).is_err());
    let weights = open(&tensors("tiny-deepseek-v3"), &cut, Layers::First).unwrap();
    let whole = open(&tensors("tiny-deepseek-v3"), &spec, Layers::All).unwrap();
    let (some, all) = (all_values(&weights), all_values(&whole));
    assert!(some.len() < all.len() && some.iter().all(|(name, a)| all[name] == *a));
    assert_eq!(first_layers(&spec, 99), spec);
}

/// The same tensors under other names give the same weights.
fn same_under(name: &str, spec: &ModelSpec, rename: impl Fn(&str) -> String) {
    let original = open(&tensors(name), &fixture_spec(name), Layers::All).unwrap();
    let mut t = tensors(name);
    t.iter_mut().for_each(|t| t.name = rename(&t.name));
    let renamed = open(&t, spec, Layers::All).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(all_values(&renamed), all_values(&original), "{name}");
}

#[test]
fn decoders_inside_wrappers_are_found() {
    let name = "tiny-kimi-k2-int4";
    let wrapped = ModelSpec { tensor_prefix: "language_model.".into(), ..fixture_spec(name) };
    same_under(name, &wrapped, |n| format!("language_model.{n}"));
    same_under(name, &wrapped, |n| n.replace("model.", "model.language_model."));
    same_under(name, &wrapped, str::to_owned);
    let mut t = tensors(name);
    t.iter_mut().for_each(|t| t.name = format!("language_model.{}", t.name));
    for outside in ["vision_tower.encoder.weight", "mm_projector.linear.bias", "model.mm_projector.in_proj.weight"] {
        t.push(OutTensor::f32(outside, vec![1], vec![0.0]));
    }
    assert!(told(&t, &wrapped).is_empty());
}

#[test]
fn mixtral_experts_are_found_under_either_naming() {
    let spec = fixture_spec("tiny-mixtral");
    same_under("tiny-mixtral", &spec, |n| {
        n.replace("block_sparse_moe", "mlp").replace(".w1.", ".gate_proj.").replace(".w3.", ".up_proj.").replace(".w2.", ".down_proj.")
    });
    same_under("tiny-mixtral", &spec, |n| n.replace("block_sparse_moe.experts", "mlp.experts").replace("block_sparse_moe", "mlp"));
}

#[test]
fn experts_stacked_in_one_tensor_are_found() {
    let spec = fixture_spec("tiny-qwen3-moe");
    let original = tensors("tiny-qwen3-moe");
    let mut t: Vec<OutTensor> = original.iter().filter(|t| !t.name.contains(".experts.")).cloned().collect();
    for layer in 0..spec.layers.len() {
        let start = format!("model.layers.{layer}.mlp.experts.");
        let of = |expert: usize, name: &str| f32s(original.iter().find(|t| t.name == format!("{start}{expert}.{name}.weight")).unwrap());
        let gate_up = (0..16).flat_map(|e| [of(e, "gate_proj"), of(e, "up_proj")].concat()).collect();
        t.push(OutTensor::f32(format!("{start}gate_up_proj"), vec![16, 64, 64], gate_up));
        t.push(OutTensor::f32(format!("{start}down_proj"), vec![16, 64, 32], (0..16).flat_map(|e| of(e, "down_proj")).collect()));
    }
    let stacked = open(&t, &spec, Layers::All).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(all_values(&stacked), all_values(&open(&original, &spec, Layers::All).unwrap()));
}

/// gpt-oss by hand: `gate_up_proj[e, h, 2 i]` is the gate's row `i`, column `h`; `down_proj[e, i, h]` is row `h`, column `i`.
#[test]
fn gpt_oss_experts_are_transposed_and_interleaved() {
    let mut t = tensors("tiny-gpt-oss");
    let weights = open(&t, &fixture_spec("tiny-gpt-oss"), Layers::All).unwrap();
    let arrays = all_values(&weights);
    let (hidden, intermediate) = (64, 64);
    let mut stored = |name: &str| f32s(find(&mut t, &format!("model.layers.1.mlp.experts.{name}")));
    let (gate_up, down, bias) = (stored("gate_up_proj"), stored("down_proj"), stored("gate_up_proj_bias"));
    let (e, h, i) = (5, 17, 42);
    let at = |h: usize, column: usize| gate_up[(e * hidden + h) * 2 * intermediate + column];
    assert_eq!(value(&arrays, "layers.1.moe.experts.gate_up.weight", &[e, i, h]), at(h, 2 * i));
    assert_eq!(value(&arrays, "layers.1.moe.experts.gate_up.weight", &[e, intermediate + i, h]), at(h, 2 * i + 1));
    assert_eq!(value(&arrays, "layers.1.moe.experts.down.weight", &[e, h, i]), down[(e * intermediate + i) * hidden + h]);
    assert_eq!(value(&arrays, "layers.1.moe.experts.gate_up.bias", &[e, i]), bias[e * 2 * intermediate + 2 * i]);
    assert_eq!(value(&arrays, "layers.1.moe.experts.gate_up.bias", &[e, intermediate + i]), bias[e * 2 * intermediate + 2 * i + 1]);
}

/// gpt-oss as published: MXFP4 blocks, not transposed, gate and up in alternate rows.
#[test]
fn gpt_oss_experts_in_mxfp4_are_found() {
    let mut spec = fixture_spec("tiny-gpt-oss");
    let mut t = tensors("tiny-gpt-oss");
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let moetwin_models::spec::Ffn::Moe(moe) = &mut layer.ffn else { panic!("gpt-oss has experts in every layer") };
        moe.format = WeightFormat::Mxfp4;
        let start = format!("model.layers.{index}.mlp.experts.");
        t.retain(|t| t.name != format!("{start}gate_up_proj") && t.name != format!("{start}down_proj"));
        for (name, rows) in [("gate_up_proj", 128), ("down_proj", 64)] {
            let raw = |shape: Vec<u64>, byte: &dyn Fn(usize) -> u8| {
                let len = shape.iter().product::<u64>() as usize;
                (shape, OutValues::Raw(StoredType::U8, (0..len).map(byte).collect()))
            };
            let blocks = raw(vec![8, rows, 2, 16], &|i| (i * 7 % 251) as u8);
            let scales = raw(vec![8, rows, 2], &|i| 120 + (i % 13) as u8);
            for (suffix, (shape, values)) in [("blocks", blocks), ("scales", scales)] {
                t.push(OutTensor { name: format!("{start}{name}_{suffix}"), shape, values });
            }
        }
    }
    let mut none = t.clone();
    none.retain(|t| !t.name.starts_with("model.layers.1.mlp.experts.gate_up_proj_"));
    let missing = told(&none, &spec);
    assert!(missing.len() == 3, "blocks, scales and bias, each once: {missing:?}");
    let arrays = all_values(&open(&t, &spec, Layers::All).unwrap_or_else(|e| panic!("{e}")));
    let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0f32];
    // Row, column of the stored matrix of all experts below each other: 64 columns are 2 blocks of 16 bytes.
    let by_hand = |row: usize, col: usize| {
        let byte = ((row * 32 + col / 2) * 7 % 251) as u8;
        let scale = 2f32.powi(120 + ((row * 2 + col / 32) % 13) as i32 - 127);
        e2m1[usize::from(byte >> (4 * (col % 2)) & 15)] * scale
    };
    for (e, i, h) in [(0, 0, 0), (3, 17, 40), (7, 63, 63)] {
        assert_eq!(value(&arrays, "layers.2.moe.experts.gate_up.weight", &[e, i, h]), by_hand(e * 128 + 2 * i, h));
        assert_eq!(value(&arrays, "layers.2.moe.experts.gate_up.weight", &[e, 64 + i, h]), by_hand(e * 128 + 2 * i + 1, h));
        assert_eq!(value(&arrays, "layers.2.moe.experts.down.weight", &[e, h, i]), by_hand(e * 64 + h, i));
    }
}

/// Fused weights are the checkpoint's matrices one below the other.
#[test]
fn fused_weights_follow_the_order_of_their_names() {
    let mut t = tensors("tiny-qwen3-moe");
    let arrays = all_values(&open(&t, &fixture_spec("tiny-qwen3-moe"), Layers::All).unwrap());
    let mut stored = |name: &str, row: usize, col: usize| f32s(find(&mut t, &format!("model.layers.1.{name}.weight")))[row * 64 + col];
    let name = "layers.1.attn.qkv.weight";
    assert_eq!(value(&arrays, name, &[100, 3]), stored("self_attn.q_proj", 100, 3));
    assert_eq!(value(&arrays, name, &[128 + 7, 60]), stored("self_attn.k_proj", 7, 60));
    assert_eq!(value(&arrays, name, &[128 + 32 + 31, 0]), stored("self_attn.v_proj", 31, 0));
    assert_eq!(value(&arrays, "layers.1.moe.experts.gate_up.weight", &[9, 32 + 4, 5]), stored("mlp.experts.9.up_proj", 4, 5));
}

#[test]
fn weight_shape_must_repeat_the_shape() {
    let spec = fixture_spec("tiny-kimi-k2-int4");
    let mut t = tensors("tiny-kimi-k2-int4");
    let name = "model.layers.1.mlp.experts.3.down_proj.weight_shape";
    // The other integer type that writers use.
    let shape = find(&mut t, name);
    shape.values = OutValues::Raw(StoredType::I64, [64i64, 64].iter().flat_map(|n| n.to_le_bytes()).collect());
    all_values(&open(&t, &spec, Layers::All).unwrap());
    find(&mut t, name).values = OutValues::I32(vec![64, 128]);
    let weights = open(&t, &spec, Layers::All).unwrap();
    let graph = whole_graph(&spec);
    let (id, _) = graph.tensors.iter().find(|(_, t)| t.name == "layers.1.moe.experts.down.weight").unwrap();
    let error = weights.load(&graph, id, RankId(0)).unwrap_err();
    assert_eq!(error.to_string(), format!("{name}: says [64, 128], the weight is [64, 64]"));
}

/// FP8 scales in bf16, as some publishers store them, decode as the same scales in f32.
#[test]
fn fp8_scales_may_be_bf16() {
    let (spec, mut t) = (fixture_spec("tiny-deepseek-v3-fp8"), tensors("tiny-deepseek-v3-fp8"));
    let mut wide = t.clone();
    for (narrow, wide) in t.iter_mut().zip(&mut wide).filter(|(t, _)| t.name.ends_with("weight_scale_inv")) {
        let OutValues::Raw(_, bytes) = &narrow.values else { panic!() };
        let scales: Vec<bf16> = bytes.chunks_exact(4).map(|b| bf16::from_f32(f32::from_le_bytes(b.try_into().unwrap()))).collect();
        wide.values = OutValues::F32(scales.iter().map(|s| s.to_f32()).collect());
        narrow.values = OutValues::Raw(StoredType::Bf16, scales.iter().flat_map(|s| s.to_le_bytes()).collect());
    }
    assert_eq!(all_values(&open(&t, &spec, Layers::All).unwrap()), all_values(&open(&wide, &spec, Layers::All).unwrap()));
}

/// compressed-tensors names the same multipliers otherwise.
#[test]
fn fp8_scales_have_two_names() {
    let name = "tiny-deepseek-v3-fp8";
    same_under(name, &fixture_spec(name), |n| n.replace("weight_scale_inv", "weight_scale"));
    let mut t = tensors(name);
    t.retain(|t| t.name != "model.layers.1.self_attn.o_proj.weight_scale_inv");
    assert!(told(&t, &fixture_spec(name))[0].starts_with("model.layers.1.self_attn.o_proj.weight_scale_inv: missing"));
}

/// Scales of INT4 groups come in the model's type; the product with the integer is rounded once, to f32.
#[test]
fn int4_scales_may_be_f16_or_f32() {
    let (spec, original) = (fixture_spec("tiny-kimi-k2-int4"), tensors("tiny-kimi-k2-int4"));
    let module = "model.layers.2.mlp.experts.5.up_proj";
    let stored = |name: &str| original.iter().find(|t| t.name == format!("{module}.{name}")).unwrap();
    let OutValues::Raw(_, words) = &stored("weight_packed").values else { panic!() };
    let nibble = |row: usize, col: usize| (words[row * 32 + col / 2] >> (4 * (col % 2)) & 15) as f32 - 8.0;
    let scales = f32s(stored("weight_scale"));
    // A factor that makes every scale one that bf16 cannot hold.
    let own = |scale: f32| half::f16::from_f32(scale * 1.003).to_f32();
    let changed = |make: &dyn Fn(Vec<f32>) -> OutValues| {
        let mut t = original.clone();
        t.iter_mut().filter(|t| t.name.ends_with("weight_scale")).for_each(|t| t.values = make(f32s(t).into_iter().map(own).collect()));
        all_values(&open(&t, &spec, Layers::All).unwrap_or_else(|e| panic!("{e}")))
    };
    let wide = changed(&OutValues::F32);
    let narrow = changed(&|v| OutValues::Raw(StoredType::F16, v.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect()));
    assert_eq!(wide, narrow);
    for (row, col) in [(0, 0), (7, 31), (7, 32), (63, 63)] {
        let found = value(&wide, "layers.2.moe.experts.gate_up.weight", &[5, 64 + row, col]);
        assert_eq!(found, nibble(row, col) * own(scales[row * 2 + col / 32]), "row {row}, column {col}");
    }
}

/// transformers writes tensors without elements for a shared expert of no width, and Qwen2's gate of it.
#[test]
fn shared_experts_without_width_are_no_fault() {
    let (mut spec, mut t) = (fixture_spec("tiny-qwen2-moe"), tensors("tiny-qwen2-moe"));
    for layer in &mut spec.layers {
        if let moetwin_models::spec::Ffn::Moe(moe) = &mut layer.ffn {
            moe.shared = None;
        }
    }
    let gates = t.iter().filter(|t| t.name.ends_with("shared_expert_gate.weight")).count();
    for tensor in t.iter_mut().filter(|t| t.name.contains(".shared_expert.")) {
        let down = tensor.name.ends_with("down_proj.weight");
        (tensor.shape, tensor.values) = (if down { vec![64, 0] } else { vec![0, 64] }, OutValues::F32(Vec::new()));
    }
    assert_eq!((gates, told(&t, &spec)), (3, Vec::new()));
    t.retain(|t| !t.name.contains(".shared_expert."));
    assert_eq!(told(&t, &spec).len(), gates, "a gate whose expert is not there at all");
}

#[test]
fn tied_embeddings_need_no_head_and_take_no_notice_of_one() {
    let spec = ModelSpec { tied_embeddings: true, ..fixture_spec("tiny-mixtral") };
    let mut t = tensors("tiny-mixtral");
    assert!(told(&t, &spec).is_empty());
    t.retain(|t| t.name != "lm_head.weight");
    assert!(told(&t, &spec).is_empty());
    assert_eq!(told(&t, &fixture_spec("tiny-mixtral")).len(), 1);
}

/// What is modelled for cost only has no loader, and says so instead of computing something.
#[test]
fn blocks_without_a_loader_are_named() {
    let spec = moetwin_models::zoo::spec("qwen3-next-80b-a3b").unwrap();
    let faults = told(&[OutTensor::f32("model.embed_tokens.weight", vec![1], vec![0.0])], &spec);
    assert!(faults.iter().any(|f| f.contains(" has no loader: blocks that are modelled for cost only have none")), "{faults:?}");
}

#[test]
fn a_graph_of_another_model_is_refused() {
    let weights = open(&tensors("tiny-mixtral"), &fixture_spec("tiny-mixtral"), Layers::All).unwrap();
    let graph = whole_graph(&fixture_spec("tiny-olmoe"));
    let (id, _) = graph.tensors.iter().find(|(_, t)| t.name == "layers.1.attn.qkv.weight").unwrap();
    let error = weights.load(&graph, id, RankId(0)).unwrap_err();
    assert_eq!(error.to_string(), "layers.1.attn.qkv.weight: the graph says [192, 64], the model's weight is [128, 64]");
    let (id, _) = graph.tensors.iter().find(|(_, t)| !matches!(t.kind, TensorKind::Weight(_))).unwrap();
    assert!(matches!(weights.load(&graph, id, RankId(0)), Err(LoadError::NotAWeight { .. })));
}

#[test]
fn a_file_that_cannot_be_read_hides_no_fault_of_another() {
    let mut all = tensors("tiny-mixtral");
    find(&mut all, "model.norm.weight").shape = vec![2, 32];
    let folder = Folder::new("half-read");
    write_safetensors(&folder.0.join("a.safetensors"), &all).unwrap();
    folder.file("b.safetensors", "no header of a safetensors file");
    let listed: Vec<String> = all.iter().map(|t| format!(r#""{}":"a.safetensors""#, t.name)).collect();
    folder.file(INDEX_FILE, format!(r#"{{"weight_map":{{{},"model.layers.9.x":"b.safetensors"}}}}"#, listed.join(",")));
    let error = CheckpointWeights::open(&folder.0, &fixture_spec("tiny-mixtral"), Layers::All).unwrap_err();
    let told: Vec<String> = error.faults.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|t| t.starts_with("b.safetensors: ")), "{told:?}");
    assert!(told.iter().any(|t| t == "model.norm.weight: shape [2, 32], expected [64]"), "{told:?}");
    assert!(!told.iter().any(|t| t.contains("missing")), "what b holds is not known: {told:?}");
}
