"""A tokenizer of one token per byte: ids 0-255 are the bytes themselves, then four special tokens."""

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, END_OF_TURN = 256, 257, 258, 259
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<eot>")
VOCABULARY = 260

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<bos>{{ message.role }}
{{ message.content }}<eot>
{%- endfor -%}
{%- if add_generation_prompt -%}
<bos>assistant
{% endif -%}
"""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Any text round-trips; <bos> is not added by itself."""
    characters = byte_characters()
    tokenizer = Tokenizer(BPE(vocab={character: byte for byte, character in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def byte_characters() -> list[str]:
    """The printable character that byte-level BPE (GPT-2) writes for each byte, in byte order.

    Printable bytes of Latin-1 stand for themselves; the others take the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
