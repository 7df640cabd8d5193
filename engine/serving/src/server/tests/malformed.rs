//! Requests that are no messages of the API: the client's fault, and told so.

use prost::Message as _;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

use super::*;

/// Sends bytes as they are, and passes over what is answered.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(buffer, &bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        let left = prost::bytes::Buf::remaining(buffer);
        prost::bytes::Buf::advance(buffer, left);
        Ok(Some(()))
    }
}

async fn refused(channel: &Channel, method: &'static str, message: Vec<u8>) -> Status {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.expect("a server");
    let path = PathAndQuery::from_static(method);
    let answer = client.unary(tonic::Request::new(message), path, Raw).await;
    answer.expect_err("no message of the API")
}

#[tokio::test]
async fn requests_that_do_not_decode_are_invalid_arguments() {
    const GENERATE: &str = "/ebb.v1.Ebb/Generate";
    const TOKENIZE: &str = "/ebb.v1.Ebb/Tokenize";
    const ABORT: &str = "/ebb.v1.Ebb/Abort";
    let (_fake, _server, channel) = start().await;
    // One byte of each text is replaced by one that UTF-8 does not have.
    let not_utf8 = |mut message: Vec<u8>| {
        let at = message.iter().position(|&b| b == b'#').expect("a text");
        message[at] = 0xff;
        message
    };
    let prompt = not_utf8(text("ab#").encode_to_vec());
    let stop = v1::GenerateRequest {
        sampling: Some(v1::SamplingParams {
            stop: vec!["#".into()],
            ..Default::default()
        }),
        ..text("count")
    };
    let name = v1::AbortRequest {
        request_id: "#".into(),
    };
    for (method, message) in [
        (GENERATE, prompt.clone()),
        (GENERATE, not_utf8(stop.encode_to_vec())),
        (
            TOKENIZE,
            not_utf8(
                v1::TokenizeRequest {
                    input: Some(v1::tokenize_request::Input::Text("#".into())),
                    ..Default::default()
                }
                .encode_to_vec(),
            ),
        ),
        (ABORT, not_utf8(name.encode_to_vec())),
        // Cut off, a length beyond the end, a field number 0, a wrong wire type.
        (GENERATE, text("count").encode_to_vec()[..4].to_vec()),
        (GENERATE, vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        (GENERATE, vec![0x00, 0x00]),
        (ABORT, vec![0x08, 0x01]),
    ] {
        let status = refused(&channel, method, message.clone()).await;
        assert_eq!(
            status.code(),
            Code::InvalidArgument,
            "{message:?}: {status}"
        );
        assert!(status.message().contains("not valid"), "{status}");
    }
    let status = refused(&channel, GENERATE, prompt).await;
    assert!(status.message().contains("UTF-8"), "{status}");
    assert_eq!(code(collect(&channel, text("count")).await.1), Code::Ok);
}

#[tokio::test]
async fn bodies_that_are_no_messages_are_invalid_arguments() {
    let (_, port) = in_memory();
    let message = text("count").encode_to_vec();
    let length = (message.len() as u32).to_be_bytes();
    let framed = |flag: u8| [&[flag][..], &length, &message].concat();
    for (body, says) in [
        (Vec::new(), "has no message"),
        (framed(1), "begins with the byte 1"),
        (framed(2), "begins with the byte 2"),
        (framed(0)[..3].to_vec(), "in the middle of a message"),
        (framed(0)[..9].to_vec(), "in the middle of a message"),
        (
            [framed(0), vec![0, 0]].concat(),
            "in the middle of a message",
        ),
    ] {
        for method in ["Generate", "GetServerInfo"] {
            let status = ask(&port, method, body.clone()).await;
            assert_eq!(status.code(), Code::InvalidArgument, "{body:?}: {status}");
            assert!(status.message().contains(says), "{body:?}: {status}");
        }
    }
    // Nothing is said of a message in it.
    assert_eq!(
        ask(&port, "GetServerInfo", vec![0; 5]).await.code(),
        Code::Ok
    );
}
