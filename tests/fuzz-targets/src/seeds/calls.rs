//! Calls of the API.

use ebb_proto::v1;
use ebb_proto::v1::generate_request::Prompt;
use prost::Message as _;

use crate::targets::grpc_frames::{call, frame, preface};
use crate::targets::protobuf::{BODY, PATHS, framed};

type Inputs = Vec<(String, Vec<u8>)>;

fn sampling() -> v1::SamplingParams {
    v1::SamplingParams {
        temperature: Some(0.7),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.05),
        repetition_penalty: Some(1.1),
        presence_penalty: Some(0.5),
        frequency_penalty: Some(-0.5),
        logit_bias: [(1, 5.0), (63, -100.0)].into(),
        seed: Some(42),
        max_tokens: Some(16),
        min_tokens: Some(1),
        stop: vec!["\n".into(), "###".into()],
        include_stop: true,
        stop_token_ids: vec![3, 4],
        ignore_eos: true,
        skip_special_tokens: Some(false),
        logprobs: Some(5),
        prompt_logprobs: Some(2),
        n: Some(2),
    }
}

fn generate(prompt: Prompt) -> v1::GenerateRequest {
    v1::GenerateRequest {
        request_id: "a-name".into(),
        prompt: Some(prompt),
        sampling: Some(sampling()),
        priority: -1,
        timeout_ms: Some(1000),
        min_kv_bits: Some(8),
    }
}

fn chat() -> v1::ChatMessages {
    let message = |role: &str, content: &str| v1::ChatMessage {
        role: role.into(),
        content: content.into(),
    };
    v1::ChatMessages {
        messages: vec![message("system", "Be brief."), message("user", "Grüße")],
    }
}

/// The calls by their number, encoded.
fn requests() -> Vec<(u8, &'static str, Vec<u8>)> {
    let only = |sampling| v1::GenerateRequest {
        prompt: Some(Prompt::TokenIds(v1::TokenIds { ids: vec![1, 2, 3] })),
        sampling: Some(sampling),
        ..Default::default()
    };
    let base = v1::SamplingParams::default;
    let with = |change: fn(&mut v1::SamplingParams)| {
        let mut params = base();
        change(&mut params);
        only(params).encode_to_vec()
    };
    let ids = v1::TokenIds {
        ids: vec![0, 63, 64, u32::MAX],
    };
    let text = v1::tokenize_request::Input::Text("Hello, 世界".into());
    vec![
        (
            0,
            "text",
            generate(Prompt::Text("Hello".into())).encode_to_vec(),
        ),
        (0, "ids", generate(Prompt::TokenIds(ids)).encode_to_vec()),
        (0, "chat", generate(Prompt::Chat(chat())).encode_to_vec()),
        (0, "nothing", Vec::new()),
        (
            0,
            "tiny-penalty",
            with(|p| p.repetition_penalty = Some(1e-38)),
        ),
        (0, "nan", with(|p| p.temperature = Some(f32::NAN))),
        (
            0,
            "infinite-bias",
            with(|p| p.logit_bias = [(1, f32::INFINITY)].into()),
        ),
        (
            0,
            "all-biased",
            with(|p| p.logit_bias = (0..64).map(|i| (i, -100.0)).collect()),
        ),
        (
            0,
            "all-stop",
            with(|p| {
                p.stop_token_ids = (0..64).collect();
                p.min_tokens = Some(2);
            }),
        ),
        (0, "many", with(|p| p.n = Some(u32::MAX))),
        (0, "cold", with(|p| p.temperature = Some(1e-45))),
        (0, "hot", with(|p| p.temperature = Some(f32::MAX))),
        (0, "least-p", with(|p| p.top_p = Some(f32::MIN_POSITIVE))),
        (0, "long-stop", with(|p| p.stop = vec!["x".repeat(300)])),
        (
            0,
            "long-id",
            v1::GenerateRequest {
                request_id: "x".repeat(3000),
                ..generate(Prompt::Text("a".into()))
            }
            .encode_to_vec(),
        ),
        (
            0,
            "late",
            v1::GenerateRequest {
                timeout_ms: Some(u64::MAX),
                min_kv_bits: Some(3),
                ..generate(Prompt::Text("a".into()))
            }
            .encode_to_vec(),
        ),
        (
            0,
            "latest",
            v1::GenerateRequest {
                prompt: Some(Prompt::Text("a".into())),
                timeout_ms: Some(u64::MAX),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (0, "not-utf8", vec![0x12, 2, b'a', 0xff]),
        (0, "endless", vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        (0, "field-0", vec![0, 0]),
        (0, "group", vec![0x0b; 300]),
        (
            1,
            "abort",
            v1::AbortRequest {
                request_id: "a-name".into(),
            }
            .encode_to_vec(),
        ),
        (
            2,
            "tokenize",
            v1::TokenizeRequest {
                input: Some(text),
                add_special_tokens: Some(true),
            }
            .encode_to_vec(),
        ),
        (
            2,
            "tokenize-chat",
            v1::TokenizeRequest {
                input: Some(v1::tokenize_request::Input::Chat(chat())),
                add_special_tokens: None,
            }
            .encode_to_vec(),
        ),
        (
            3,
            "detokenize",
            v1::DetokenizeRequest {
                token_ids: vec![7, 10, 63],
                skip_special_tokens: Some(true),
            }
            .encode_to_vec(),
        ),
        (
            3,
            "detokenize-beyond",
            v1::DetokenizeRequest {
                token_ids: vec![64],
                skip_special_tokens: None,
            }
            .encode_to_vec(),
        ),
        (4, "model-info", Vec::new()),
        (5, "server-info", Vec::new()),
        (5, "server-info-unknown", vec![0x08, 1, 0x12, 0]),
    ]
}

/// Answers, by the number of their call.
fn answers() -> Vec<(u8, &'static str, Vec<u8>)> {
    use v1::generate_response::Event;
    let logprobs = v1::TokenLogprobs {
        token_id: 1,
        logprob: -0.5,
        top: vec![v1::TopLogprob {
            token_id: 2,
            logprob: f32::NEG_INFINITY,
        }],
    };
    let event = |event| v1::GenerateResponse { event: Some(event) }.encode_to_vec();
    let kv = v1::KvPrecision {
        mode: "progressive".into(),
        formats: vec![v1::KvFormatUse {
            format: "int8".into(),
            pages: 3,
            bytes: 4,
        }],
        ..Default::default()
    };
    vec![
        (
            0,
            "started",
            event(Event::Started(v1::Started {
                request_id: "a".into(),
                prompt_tokens: 3,
                cached_tokens: 1,
            })),
        ),
        (
            0,
            "delta",
            event(Event::Delta(v1::Delta {
                choice: 1,
                text: "x".into(),
                token_ids: vec![1, 2],
                logprobs: vec![logprobs],
            })),
        ),
        (
            0,
            "finished",
            event(Event::Finished(v1::Finished {
                choice: 1,
                reason: 1,
                stop_string: Some("x".into()),
                completion_tokens: 5,
                mean_kv_bits: 16.0,
                ..Default::default()
            })),
        ),
        (
            2,
            "tokenized",
            v1::TokenizeResponse {
                token_ids: vec![1, 2],
            }
            .encode_to_vec(),
        ),
        (
            3,
            "detokenized",
            v1::DetokenizeResponse { text: "x".into() }.encode_to_vec(),
        ),
        (
            5,
            "server",
            v1::GetServerInfoResponse {
                version: "0.1.0".into(),
                kv_precision: Some(kv),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
    ]
}

/// Bodies that gRPC's framing makes wrong, by what is wrong.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let (_, _, message) = requests().swap_remove(0);
    let sound = framed(&message);
    let flagged = |flag: u8| [&[flag][..], &sound[1..]].concat();
    vec![
        ("sound", sound.clone()),
        ("empty", Vec::new()),
        ("compressed", flagged(1)),
        ("flag-2", flagged(2)),
        ("cut", sound[..sound.len() - 3].to_vec()),
        ("half-a-header", sound[..3].to_vec()),
        ("two", [&sound[..], &sound].concat()),
        ("and-a-half", [&sound[..], &sound[..9]].concat()),
        ("4-gib", vec![0, 255, 255, 255, 255, 1, 2, 3]),
        ("too-large", [&[0, 0, 0, 0x20, 0][..], &[0; 100]].concat()),
        ("empty-message", framed(&[])),
    ]
}

pub(super) fn messages() -> Inputs {
    let requests = requests().into_iter();
    let mut inputs: Inputs = requests
        .map(|(kind, name, message)| (name.into(), [&[kind][..], &message].concat()))
        .collect();
    let first = PATHS.len() as u8;
    inputs.extend(
        answers()
            .into_iter()
            .map(|(kind, name, message)| (name.into(), [&[first + kind][..], &message].concat())),
    );
    for (name, body) in bodies() {
        for kind in [0, 4] {
            let path = PATHS[kind as usize].rsplit('/').next().unwrap_or_default();
            inputs.push((
                format!("body-{name}-{path}"),
                [&[BODY | kind][..], &body].concat(),
            ));
        }
    }
    inputs
}

pub(super) fn connections() -> Inputs {
    let (_, _, message) = requests().swap_remove(0);
    let generate = call(PATHS[0], &framed(&message), 50);
    let mut inputs = Inputs::new();
    let mut add = |name: &str, first: u8, rest: &[u8]| {
        inputs.push((name.into(), [&[first][..], rest].concat()));
    };
    add("whole", 0, &[preface(), generate.clone()].concat());
    add("http1", 0, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    add("tls", 0, &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    add("half-a-preface", 0, &preface()[..20]);
    add("frames", 1, &generate);
    add(
        "unknown-path",
        1,
        &call("/ebb.v1.Ebb/No", &framed(&message), 50),
    );
    add(
        "reflection",
        1,
        &call(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            &framed(&[0x3a, 0]),
            50,
        ),
    );
    // RST_STREAM, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, PUSH_PROMISE, an unknown kind.
    let resets: Vec<u8> = (0..40)
        .flat_map(|_| frame(3, 0, 1, &[0, 0, 0, 8]))
        .collect();
    add("resets", 1, &[generate.clone(), resets].concat());
    let pings: Vec<u8> = (0..40).flat_map(|_| frame(6, 0, 0, &[1; 8])).collect();
    add("pings", 1, &pings);
    add(
        "goaway",
        1,
        &[frame(7, 0, 0, &[0; 8]), generate.clone()].concat(),
    );
    add("window", 1, &frame(8, 0, 0, &0x7fff_ffffu32.to_be_bytes()));
    let continued: Vec<u8> = (0..40).flat_map(|_| frame(9, 0, 1, &[0; 20])).collect();
    add(
        "continuation",
        1,
        &[frame(1, 0, 1, &[]), continued].concat(),
    );
    add("push", 1, &frame(5, 4, 1, &[0, 0, 0, 2]));
    add(
        "unknown-frame",
        1,
        &[frame(0xee, 255, 0, &[7; 30]), generate].concat(),
    );
    add("settings", 1, &frame(4, 0, 0, &[0, 4, 255, 255, 255, 255]));
    add("zero-window", 1, &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for (name, body) in bodies() {
        add(&format!("body-{name}"), 6, &[&[17][..], &body].concat());
    }
    for (kind, name, message) in requests() {
        let call = 6 + kind;
        add(
            &format!("call-{name}"),
            call,
            &[&[200][..], &framed(&message)].concat(),
        );
    }
    inputs
}
