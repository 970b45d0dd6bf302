//! Start-up logs of SGLang and vLLM.
