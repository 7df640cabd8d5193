//! Sampling parameters of a message: what it leaves out comes from the model's defaults.

use ebb_proto::v1;

use crate::sampling::SamplingOptions;

/// The parameters asked for; the engine checks them.
pub(super) fn sampling(message: v1::SamplingParams, defaults: SamplingOptions) -> SamplingOptions {
    let d = defaults;
    SamplingOptions {
        temperature: message.temperature.unwrap_or(d.temperature),
        top_k: message.top_k.unwrap_or(d.top_k),
        top_p: message.top_p.unwrap_or(d.top_p),
        min_p: message.min_p.unwrap_or(d.min_p),
        repetition_penalty: message.repetition_penalty.unwrap_or(d.repetition_penalty),
        presence_penalty: message.presence_penalty.unwrap_or(d.presence_penalty),
        frequency_penalty: message.frequency_penalty.unwrap_or(d.frequency_penalty),
        logit_bias: message.logit_bias.into_iter().collect(),
        seed: message.seed.or(d.seed),
        max_tokens: message.max_tokens.or(d.max_tokens),
        min_tokens: message.min_tokens.unwrap_or(d.min_tokens),
        stop: message.stop,
        include_stop: message.include_stop,
        skip_special_tokens: message.skip_special_tokens.unwrap_or(true),
        stop_token_ids: message.stop_token_ids,
        ignore_eos: message.ignore_eos,
        logprobs: message.logprobs,
        prompt_logprobs: message.prompt_logprobs,
        n: message.n.unwrap_or(d.n),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::path;
    use super::*;
    use crate::core::{Prompt, Request, RequestError};

    #[test]
    fn absent_fields_take_the_models_defaults_and_set_ones_their_value() {
        let defaults = SamplingOptions {
            temperature: 0.6,
            top_k: 20,
            ..Default::default()
        };
        let message = v1::SamplingParams {
            top_k: Some(0),
            logit_bias: [(3, -1.5)].into(),
            stop: vec!["\n".into()],
            logprobs: Some(0),
            ..Default::default()
        };
        let params = sampling(message, defaults).validate(100).unwrap();
        assert_eq!((params.temperature, params.top_k, params.n), (0.6, 0, 1));
        assert_eq!((params.logprobs, params.prompt_logprobs), (Some(0), None));
        assert_eq!(params.logit_bias, [(3, -1.5)]);
        assert_eq!(params.stop, ["\n"]);
    }

    #[test]
    fn errors_name_the_field_as_clients_write_it() {
        let check = |message| {
            let options = sampling(message, SamplingOptions::default());
            match Request::new(Prompt::Tokens(vec![1]), options).validate(100) {
                Err(RequestError::Invalid { field, .. }) => path(field),
                other => panic!("{other:?}"),
            }
        };
        let base = v1::SamplingParams::default;
        for (field, message) in [
            (
                "sampling.temperature",
                v1::SamplingParams {
                    temperature: Some(f32::NAN),
                    ..base()
                },
            ),
            (
                "sampling.temperature",
                v1::SamplingParams {
                    temperature: Some(-1.0),
                    ..base()
                },
            ),
            (
                "sampling.top_p",
                v1::SamplingParams {
                    top_p: Some(0.0),
                    ..base()
                },
            ),
            (
                "sampling.min_p",
                v1::SamplingParams {
                    min_p: Some(1.5),
                    ..base()
                },
            ),
            (
                "sampling.repetition_penalty",
                v1::SamplingParams {
                    repetition_penalty: Some(0.0),
                    ..base()
                },
            ),
            (
                "sampling.presence_penalty",
                v1::SamplingParams {
                    presence_penalty: Some(3.0),
                    ..base()
                },
            ),
            (
                "sampling.frequency_penalty",
                v1::SamplingParams {
                    frequency_penalty: Some(-3.0),
                    ..base()
                },
            ),
            (
                "sampling.logit_bias[7]",
                v1::SamplingParams {
                    logit_bias: [(7, 101.0)].into(),
                    ..base()
                },
            ),
            (
                "sampling.max_tokens",
                v1::SamplingParams {
                    max_tokens: Some(0),
                    ..base()
                },
            ),
            (
                "sampling.stop[1]",
                v1::SamplingParams {
                    stop: vec!["a".into(), "".into()],
                    ..base()
                },
            ),
            (
                "sampling.stop_token_ids[0]",
                v1::SamplingParams {
                    stop_token_ids: vec![100],
                    ..base()
                },
            ),
            (
                "sampling.logprobs",
                v1::SamplingParams {
                    logprobs: Some(1000),
                    ..base()
                },
            ),
            (
                "sampling.prompt_logprobs",
                v1::SamplingParams {
                    prompt_logprobs: Some(1000),
                    ..base()
                },
            ),
            (
                "sampling.n",
                v1::SamplingParams {
                    n: Some(0),
                    ..base()
                },
            ),
        ] {
            assert_eq!(check(message), field);
        }
    }
}
