use super::*;
use moetwin_models::OpClass;
use proptest::prelude::*;

/// Names of a step: embedding, `layers` layers of which the first is dense, head and argmax.
fn step_names(layers: usize) -> Vec<&'static str> {
    let mut out = vec!["void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16>"];
    for layer in 0..layers {
        out.extend([
            "void vllm::rms_norm_kernel<c10::BFloat16>",
            "nvjet_tst_64x24_64x16_4x1_v_bz_TNT",
            "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
            "void flash_fwd_splitkv_mla_kernel<bf16>",
            "nvjet_tst_128x24_64x11_2x1_v_bz_TNT",
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
            "void vllm::rms_norm_kernel<c10::BFloat16>",
        ]);
        if layer == 0 {
            out.extend(["nvjet_tst_192x8_64x8_2x1_v_bz_TNT", "void vllm::act_and_mul_kernel<c10::BFloat16>", "nvjet_tst_64x8_TNT"]);
        } else {
            out.extend(["nvjet_tst_64x8_TNT", "void vllm::moe::topkGating<8, 384>", "fused_moe_kernel", "fused_moe_kernel"]);
        }
        out.push("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>");
    }
    out.extend(["nvjet_tst_512x8_64x3_TNT", "void at::native::reduce_kernel<512, 1, ArgMaxOps<float>>"]);
    out
}

/// Microseconds of a kernel.
fn us(name: &str) -> u64 {
    if name.contains("fused_moe") { 20 } else { 4 }
}

/// Steps on some GPUs: name, device, start and duration in nanoseconds. A microsecond goes by between kernels.
fn run(devices: u32, steps: usize, layers: usize) -> Vec<(&'static str, u32, u64, u64)> {
    let mut out = Vec::new();
    for device in 0..devices {
        let mut at = 1_000_000_000 + u64::from(device) * 137;
        for _ in 0..steps {
            for name in step_names(layers) {
                out.push((name, device, at, 1000 * us(name)));
                at += 1000 * us(name) + 1000;
            }
        }
    }
    out
}

fn kineto(events: &[(&str, u32, u64, u64)]) -> String {
    let mut out =
        String::from("{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"NVIDIA H200\"}], \"traceEvents\": [\n");
    out.push_str("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, \"args\": {\"name\": \"python\"}},\n");
    out.push_str("{\"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"x\", \"pid\": 1, \"tid\": 1, \"ts\": 1.0, \"dur\": 2.0, \"args\": {\"Python id\": 1, \"a\": [1, {}]}},\n");
    let lines: Vec<String> = events
        .iter()
        .map(|(name, device, start, duration)| {
            format!(
                "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": {name:?}, \"pid\": {device}, \"tid\": 7, \"ts\": {}.{:03}, \"dur\": {}.{:03}, \
                 \"args\": {{\"External id\": 5, \"device\": {device}, \"context\": 1, \"stream\": 7, \"grid\": [1, 1, 1]}}}}",
                start / 1000,
                start % 1000,
                duration / 1000,
                duration % 1000
            )
        })
        .collect();
    out.push_str(&lines.join(",\n"));
    out.push_str("\n]}\n");
    out
}

fn csv(events: &[(&str, u32, u64, u64)]) -> String {
    let mut out = String::from(
        "NOTICE: Existing SQLite export found: report.sqlite\n\nProcessing [report.sqlite] with [cuda_gpu_trace.py]... \n\
         Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,\
         DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n",
    );
    for (name, device, start, duration) in events {
        out.push_str(&format!("{start},{duration},1,1,1,1,128,1,1,16,0.0,0.0,,,,,NVIDIA H200 ({device}),1,,7,\"{name}\"\n"));
    }
    out
}

fn shares(p: &StepProfile) -> Vec<(&'static str, i64, i64)> {
    p.classes.iter().map(|c| (c.class, libm::rint(c.us * 1e3) as i64, libm::rint(c.calls * 1e3) as i64)).collect()
}

#[test]
fn every_format_says_the_same_of_one_run() {
    let events = run(2, 5, 6);
    let from_json = read(kineto(&events).as_bytes()).unwrap();
    let from_csv = read(csv(&events).as_bytes()).unwrap();
    assert_eq!((from_json.source, from_csv.source), (Source::Kineto, Source::NsysTrace));
    assert_eq!((&from_json.gpus, &from_csv.gpus), (&vec!["NVIDIA H200".to_owned()], &vec!["NVIDIA H200".to_owned()]));
    let (a, b) = (summarize(&from_json, None, 6).unwrap(), summarize(&from_csv, None, 6).unwrap());
    assert_eq!(shares(&a), shares(&b));
    // Between five steps there are four whole periods on each GPU.
    assert_eq!((a.devices, a.steps, a.steps_left_out), (2, 8, 0));
    let kernels = step_names(6).len();
    let total: u64 = step_names(6).into_iter().map(us).sum();
    assert_eq!(a.kernels, kernels as f64);
    assert!((a.step_us.unwrap() - (total + kernels as u64) as f64).abs() < 0.01, "{a:?}");
    assert!((a.busy_us.unwrap() - total as f64).abs() < 0.01);
    let of = |class: OpClass| a.classes.iter().find(|c| c.class == class.name()).map_or((0.0, 0.0), |c| (libm::rint(c.us), c.calls));
    assert_eq!(of(OpClass::Experts), (200.0, 10.0));
    assert_eq!(of(OpClass::AllReduce), (48.0, 12.0));
    assert_eq!(of(OpClass::AttentionProjection), (48.0, 12.0));
    assert_eq!(of(OpClass::DenseMlp), (8.0, 2.0));
    assert_eq!(of(OpClass::Router), (40.0, 10.0));
    assert_eq!(of(OpClass::Head), (8.0, 2.0));
    assert_eq!(of(OpClass::Embedding), (4.0, 1.0));
    let sum: f64 = a.classes.iter().map(|c| c.us).sum();
    assert!((sum - total as f64).abs() < 0.01);
}

/// Made by SQLite itself, with the tables of `nsys export`: the same run, pages of 1,024 bytes, one name longer than two of them.
const SQLITE: &[u8] = include_bytes!("../../../tests/fixtures/profiles/nsys.sqlite");

#[test]
fn a_database_says_the_same_as_a_table() {
    let profile = read(SQLITE).unwrap();
    assert_eq!((profile.source, &profile.gpus), (Source::NsysSqlite, &vec!["NVIDIA H200".to_owned()]));
    assert_eq!(
        profile.names.iter().map(String::len).max(),
        Some("void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16>".len() + 2702)
    );
    let from_csv = summarize(&read(csv(&run(2, 5, 6)).as_bytes()).unwrap(), None, 6).unwrap();
    let found = summarize(&profile, None, 6).unwrap();
    assert_eq!((shares(&found), found.step_us, found.busy_us), (shares(&from_csv), from_csv.step_us, from_csv.busy_us));
    for cut in [100, 5000, SQLITE.len() / 2, SQLITE.len() - 1024] {
        let error = read(&SQLITE[..cut]).unwrap_err().to_string();
        assert!(error.contains("too early"), "{cut}: {error}");
    }
}

proptest! {
    #[test]
    fn any_damage_to_a_database_is_read_or_refused(at in 0usize..SQLITE.len(), value in any::<u8>(), more in 0usize..SQLITE.len(), other in any::<u8>()) {
        let mut bytes = SQLITE.to_vec();
        (bytes[at], bytes[more]) = (value, other);
        read(&bytes).ok();
    }
}

#[test]
fn a_layer_is_no_step() {
    let events = run(1, 4, 40);
    let profile = read(csv(&events).as_bytes()).unwrap();
    let found = summarize(&profile, None, 40).unwrap();
    assert_eq!((found.steps, found.kernels as usize), (3, step_names(40).len()));
    // Steps of another batch are left out.
    let mut mixed = run(1, 8, 10);
    let n = step_names(10).len();
    let mut late = 0;
    for (i, event) in mixed.iter_mut().enumerate() {
        event.2 += late;
        if (3 * n..4 * n).contains(&i) {
            late += 9 * event.3;
            event.3 *= 10;
        }
    }
    let found = summarize(&read(csv(&mixed).as_bytes()).unwrap(), None, 10).unwrap();
    assert_eq!((found.steps, found.steps_left_out), (6, 1));
}

#[test]
fn what_does_not_repeat_needs_to_be_told_how_many_steps_there_are() {
    let profile = read(csv(&run(1, 1, 3)).as_bytes()).unwrap();
    assert_eq!(summarize(&profile, None, 3), None);
    let told = summarize(&profile, Some(1), 3).unwrap();
    assert_eq!((told.steps, told.kernels as usize), (1, step_names(3).len()));
    let sums = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
                60.0,6000,3,2000,2000,2000,2000,0,fused_moe_kernel\n40.0,4000,2,2000,2000,2000,2000,0,\"void vllm::rms_norm_kernel<float, 1>\"\n";
    let profile = read(sums.as_bytes()).unwrap();
    assert_eq!(profile.source, Source::NsysSums);
    assert_eq!(summarize(&profile, None, 3), None);
    let told = summarize(&profile, Some(2), 3).unwrap();
    assert_eq!(shares(&told), [("experts", 3000, 1500), ("elementwise", 2000, 1000)]);
    assert_eq!(told.step_us, None);
}

#[test]
fn packed_files_are_unpacked_and_broken_ones_are_named() {
    use std::io::Write;
    let text = kineto(&run(1, 3, 4));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(read(&packed), read(text.as_bytes()));
    for (bytes, words) in [
        (&b""[..], "empty"),
        (&packed[..packed.len() / 2], "too early"),
        (&text.as_bytes()[..text.len() / 2], "too early: the JSON stops at line"),
        (b"{\"traceEvents\": [{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": \"soon\", \"dur\": 1}]}", "traceEvents[0]"),
        (b"{\"traceEvents\": []}", "no kernel"),
        (b"{\"rows\": []}", "without \"traceEvents\""),
        (b"{\"otherData\": {\"origin\": \"sim\"}, \"traceEvents\": []}", "moetwin itself"),
        (b"hello, world\n", "header of nsys"),
        (b"QDSTRM\0\0\0\0", "exported first"),
        (b"SQLite format 3\0", "header is shorter"),
        (b"Start (ns),Duration (ns),Name\n1,2\n", "line 2 has fewer"),
        (b"Start (ns),Duration (ns),Name\n1,x,k\n", "line 2: Duration is \"x\""),
        (b"Start (ns),Duration (ns),Name\n1,2,\"k\n", "line 2"),
        (b"Start (ns),Duration (ns),Name\n", "no kernel"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

proptest! {
    #[test]
    fn any_cut_of_a_trace_is_read_or_refused(at in 0usize..4000, flip in 0usize..4000, bit in 0u8..8) {
        let mut bytes = kineto(&run(1, 2, 2)).into_bytes();
        let n = bytes.len();
        bytes[flip % n] ^= 1 << bit;
        bytes.truncate(at % n + 1);
        if let Ok(profile) = read(&bytes) {
            summarize(&profile, Some(1), 1);
        }
    }

    #[test]
    fn a_step_is_found_whatever_it_is_made_of(names in proptest::collection::vec(0usize..6, 2..40), steps in 3usize..8) {
        // One name that runs once a step, others as they come.
        let known = ["a_gemm", "b_norm", "c_attention", "fused_moe_kernel", "d", "e"];
        let mut events = Vec::new();
        let mut at = 0;
        for _ in 0..steps {
            for name in std::iter::once("argmax").chain(names.iter().map(|n| known[*n])) {
                events.push((name, 0, at, 1000u64));
                at += 1500;
            }
        }
        let found = summarize(&read(csv(&events).as_bytes()).unwrap(), None, 0).unwrap();
        let mean = found.step_us.unwrap() / (1.5 * (names.len() + 1) as f64);
        // One step, or as many of it as look like one.
        prop_assert!((mean - libm::rint(mean)).abs() < 1e-6 || mean < 1.0, "{mean} {found:?}");
        let busy = found.busy_us.unwrap() / found.step_us.unwrap();
        prop_assert!((busy - 1.0 / 1.5).abs() < 1e-9);
    }
}
