# SPDX-License-Identifier: Apache-2.0
"""State dicts of RoBERTa, which have Hugging Face's names in this library, too."""

from smdist.modelparallel.torch.nn.huggingface.same_names import from_hf, to_hf

translate_hf_state_dict_to_smdistributed_roberta = from_hf
translate_state_dict_to_hf_roberta = to_hf

__all__ = ["translate_hf_state_dict_to_smdistributed_roberta", "translate_state_dict_to_hf_roberta"]
