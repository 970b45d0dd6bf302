//! What SGLang and vLLM would do with a launch command: their flags, defaults, rules, memory policy and start-up steps, as tables.
