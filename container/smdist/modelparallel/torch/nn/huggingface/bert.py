# SPDX-License-Identifier: Apache-2.0
"""State dicts of BERT, which have Hugging Face's names in this library, too."""

from smdist.modelparallel.torch.nn.huggingface.same_names import from_hf, to_hf

translate_hf_state_dict_to_smdistributed_bert = from_hf
translate_state_dict_to_hf_bert = to_hf

__all__ = ["translate_hf_state_dict_to_smdistributed_bert", "translate_state_dict_to_hf_bert"]
