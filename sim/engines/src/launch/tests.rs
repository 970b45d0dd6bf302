use super::*;

fn machine(gpu: &str, links: &str) -> HardwareText {
    HardwareText { gpu: gpu.to_owned(), count: Some(8), interconnect: links.to_owned(), ..HardwareText::default() }
}

fn pcie() -> HardwareText {
    machine("RTX PRO 6000 Blackwell Server Edition", "PCIe, no NVLink")
}

fn wanted<'a>(model: &'a str, deployment: &'a Deployment) -> Wanted<'a> {
    Wanted {
        model,
        folder: None,
        deployment,
        batch: 8,
        context: Some(1000),
        tokens: 1001,
        positions: 262_144,
        all_reduce: AllReduce::Own,
        graphs: true,
        peer_access: true,
        tuned_graph: false,
        version: None,
    }
}

fn text(engine: Engine, want: &Wanted<'_>) -> String {
    words::of(engine, want).unwrap().text()
}

#[test]
fn sizes_become_the_engines_flags() {
    let d = Deployment { tp: 8, dp_attention: 4, ep: 8, ..Deployment::default() };
    let want = wanted("org/model", &d);
    assert_eq!(
        text(Engine::Sglang, &want),
        "python -m sglang.launch_server --model-path org/model --tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8 \
         --max-running-requests 8 --cuda-graph-max-bs-decode 2 --context-length 2025"
    );
    assert_eq!(
        text(Engine::Vllm, &want),
        "vllm serve org/model --tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel --max-num-seqs 2 --max-model-len 2025"
    );
    let eager = Wanted { graphs: false, all_reduce: AllReduce::Nccl, peer_access: false, positions: 1500, model: "a folder", ..want };
    let line = text(Engine::Vllm, &eager);
    assert!(line.starts_with("NCCL_P2P_DISABLE=1 vllm serve 'a folder' "), "{line}");
    assert!(line.ends_with("--enforce-eager --max-model-len 1500 --disable-custom-all-reduce"), "{line}");
}

#[test]
fn tuned_rings_and_a_version_are_part_of_a_launch() {
    let d = Deployment { tp: 8, ..Deployment::default() };
    let tuned = Wanted { tuned_graph: true, ..wanted("Qwen/Qwen3-30B-A3B", &d) };
    for engine in [Engine::Sglang, Engine::Vllm] {
        let command = launch(engine, &tuned, &machine("H200", "NVLink/NVSwitch")).unwrap().command;
        assert!(command.starts_with("NCCL_GRAPH_FILE=nccl-graph.xml "), "{command}");
    }
    let one = Deployment::default();
    assert!(!text(Engine::Vllm, &Wanted { deployment: &one, ..tuned }).contains("NCCL_GRAPH_FILE"));
    // A release that has no flag for context parallelism: the one asked for is checked, and of the other engine the newest.
    let dcp = Deployment { tp: 8, dcp: 2, ..Deployment::default() };
    let old = Wanted { version: Some((Engine::Vllm, "0.8.0")), ..wanted("deepseek-ai/DeepSeek-V3", &dcp) };
    let refused = launch(Engine::Vllm, &old, &machine("H200", "NVLink/NVSwitch")).unwrap_err();
    assert!(refused.contains("--decode-context-parallel-size") && refused.contains("0.8.0"), "{refused}");
    let newest = Wanted { version: Some((Engine::Sglang, "0.5.0")), ..old };
    assert!(launch(Engine::Vllm, &newest, &machine("H200", "NVLink/NVSwitch")).is_ok());
}

#[test]
fn what_an_engine_does_not_have_has_a_reason() {
    let dcp = Deployment { tp: 8, dcp: 2, ..Deployment::default() };
    assert!(words::of(Engine::Sglang, &wanted("m", &dcp)).unwrap_err().contains("context parallelism"));
    assert!(words::of(Engine::Vllm, &wanted("m", &dcp)).is_ok());
    let part = Deployment { tp: 8, ep: 2, ..Deployment::default() };
    assert!(words::of(Engine::Vllm, &wanted("m", &part)).unwrap_err().contains("all 8 ranks"));
    assert!(words::of(Engine::Sglang, &wanted("m", &part)).is_ok());
}

#[test]
fn a_share_and_a_length_are_given_where_the_defaults_do_not_fit() {
    let d = Deployment { tp: 8, ..Deployment::default() };
    let want = Wanted { context: None, ..wanted("moonshotai/Kimi-K2.5", &d) };
    let sglang = launch(Engine::Sglang, &want, &pcie()).unwrap().command;
    assert!(sglang.contains("--mem-fraction-static 0.") && !sglang.contains("--context-length"), "{sglang}");
    let vllm = launch(Engine::Vllm, &want, &pcie()).unwrap().command;
    let length = vllm.split("--max-model-len ").nth(1).unwrap_or_else(|| panic!("{vllm}"));
    assert!(length.split(' ').next().unwrap().parse::<u64>().unwrap() >= want.room(), "{vllm}");
    // A larger batch takes a larger share.
    let many = Wanted { batch: 64, ..want };
    let larger = launch(Engine::Sglang, &many, &pcie()).unwrap().command;
    let share = |command: &str| command.split("--mem-fraction-static ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    assert!(share(&larger) > share(&sglang), "{larger} and {sglang}");
    let refused = launch(Engine::Sglang, &Wanted { batch: 4096, ..want }, &pcie()).unwrap_err();
    assert!(refused.contains("4096 sequences of 1001 tokens"), "{refused}");
}

#[test]
fn an_all_reduce_that_no_flag_asks_for_is_said() {
    let d = Deployment { tp: 8, ..Deployment::default() };
    let want = Wanted { all_reduce: AllReduce::Peer, ..wanted("Qwen/Qwen3-30B-A3B", &d) };
    for engine in [Engine::Sglang, Engine::Vllm] {
        let differs = launch(engine, &want, &pcie()).map(|l| l.differs);
        assert!(matches!(&differs, Ok(Some(why)) if why.contains("NCCL")), "{differs:?}");
        assert_eq!(launch(engine, &want, &machine("H200", "NVLink/NVSwitch")).map(|l| l.differs), Ok(None));
    }
}

#[test]
fn weights_that_do_not_fit_are_a_reason() {
    let d = Deployment { tp: 1, replicas: 8, ..Deployment::default() };
    let refused = launch(Engine::Sglang, &wanted("moonshotai/Kimi-K2.5", &d), &pcie()).unwrap_err();
    assert!(refused.contains("does not start: weights do not fit"), "{refused}");
    // Data-parallel ranks of vLLM hold parts of the experts: that is another deployment.
    let refused = launch(Engine::Vllm, &wanted("moonshotai/Kimi-K2.5", &d), &pcie()).unwrap_err();
    assert!(refused.contains("8 servers"), "{refused}");
}
