# SPDX-License-Identifier: Apache-2.0
"""State dicts of GPT-Neo, which have Hugging Face's names in this library, too."""

from smdist.modelparallel.torch.nn.huggingface.same_names import from_hf, to_hf

translate_hf_state_dict_to_smdistributed_gptneo = from_hf
translate_state_dict_to_hf_gptneo = to_hf

__all__ = ["translate_hf_state_dict_to_smdistributed_gptneo", "translate_state_dict_to_hf_gptneo"]
