//! Messages of the API. The first byte says which; the rest is the message as it is on the wire.
//! Requests are answered by the server's own service; whatever decodes is encoded again.
//!
//! With the highest bit of the first byte the rest is the whole body of the call instead, with
//! gRPC's own flag and length in front of each message.

use ebb_proto::v1;
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderMap, Request};
use tonic::{Code, Status};

use super::grpc_frames::{Server, in_memory, runtime};
use crate::sentence::assert_sentence;

/// The calls, in the order of the first byte.
pub(crate) const PATHS: [&str; 6] = [
    "/ebb.v1.Ebb/Generate",
    "/ebb.v1.Ebb/Abort",
    "/ebb.v1.Ebb/Tokenize",
    "/ebb.v1.Ebb/Detokenize",
    "/ebb.v1.Ebb/GetModelInfo",
    "/ebb.v1.Ebb/GetServerInfo",
];
/// How messages are encoded again: of requests in the order of `PATHS`, then of answers.
const ROUND_TRIPS: [fn(&[u8]); 12] = [
    round_trip::<v1::GenerateRequest>,
    round_trip::<v1::AbortRequest>,
    round_trip::<v1::TokenizeRequest>,
    round_trip::<v1::DetokenizeRequest>,
    round_trip::<v1::GetModelInfoRequest>,
    round_trip::<v1::GetServerInfoRequest>,
    round_trip::<v1::GenerateResponse>,
    round_trip::<v1::AbortResponse>,
    round_trip::<v1::TokenizeResponse>,
    round_trip::<v1::DetokenizeResponse>,
    round_trip::<v1::GetModelInfoResponse>,
    round_trip::<v1::GetServerInfoResponse>,
];
/// Bytes that a status's message may have, of the 8 KiB of headers that clients take.
const STATUS_BYTES: usize = 2048;
/// In the first byte: the rest is a body.
pub(crate) const BODY: u8 = 0x80;

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static RUNTIME: Runtime = runtime());
    let Some((&first, rest)) = bytes.split_first() else {
        return;
    };
    let is_body = first & BODY != 0;
    let kind = usize::from(first & !BODY) % ROUND_TRIPS.len();
    if !is_body {
        ROUND_TRIPS[kind](rest);
    }
    let Some(path) = PATHS.get(kind) else {
        return;
    };
    let body = match is_body {
        true => rest.to_owned(),
        false => framed(rest),
    };
    RUNTIME.with(|runtime| runtime.block_on(call(path, body)));
}

/// A message with gRPC's flag and length in front.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u32).to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// What decodes is encoded to what decodes to the same. Messages are compared by their bytes, as
/// a NaN is not equal to itself; the first encoding may differ from the input, which need not be
/// in order.
fn round_trip<M: Message + Default>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else {
        return;
    };
    let encoded = message.encode_to_vec();
    assert_eq!(encoded.len(), message.encoded_len());
    let again = M::decode(&encoded[..]).expect("own encoding");
    assert_eq!(again.encode_to_vec(), encoded, "encoded again");
}

async fn call(path: &str, body: Vec<u8>) {
    thread_local!(static SERVER: Server = in_memory());
    let server = SERVER.with(Clone::clone);
    let request = Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(Bytes::from(body))))
        .expect("a request");
    let (head, body) = server.port.call(request).await.into_parts();
    assert_eq!(head.status, 200, "{path}");
    let body = body.collect().await.expect("what is answered is sound");
    check(path, body.trailers().unwrap_or(&head.headers));
    drop(body);
    server.assert_nothing_held().await;
}

/// A call ends with a status that is the client's fault, or its luck.
fn check(path: &str, trailers: &HeaderMap) {
    let status = Status::from_header_map(trailers).expect("every answer has a status");
    match status.code() {
        Code::Ok => {}
        Code::InvalidArgument | Code::ResourceExhausted | Code::OutOfRange => {
            assert_sentence(&status.message());
            assert!(status.message().len() <= STATUS_BYTES, "{path}: {status}");
        }
        _ => panic!("{path}: {status}"),
    }
}
