# ruff: noqa: E501 (templates are text, cut where it reads best)
"""Chat templates in the manner of well-known model families, by name: their loops, filters, tests and exceptions."""

_TOOLS_HEAD = "# Tools\n\nYou may call one or more functions.\n<tools>"

TEMPLATES: dict[str, str] = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "smollm2": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are a helpful AI assistant<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "qwen 2.5": (
        "{%- if tools %}\n    {{- '<|im_start|>system\n' }}\n    {%- if messages[0]['role'] == 'system' %}\n"
        "        {{- messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are a helpful assistant.' }}\n"
        "    {%- endif %}\n    {{- " + repr("\n\n" + _TOOLS_HEAD) + " }}\n    {%- for tool in tools %}\n"
        "        {{- '\n' }}\n        {{- tool | tojson }}\n    {%- endfor %}\n    {{- '\n</tools><|im_end|>\n' }}\n"
        "{%- elif messages[0]['role'] == 'system' %}\n"
        "    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}\n"
        "    {%- if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
        "(message.role == 'assistant' and not message.tool_calls) %}\n"
        "        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}\n"
        "    {%- elif message.role == 'tool' %}\n"
        "        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}\n"
        "            {{- '<|im_start|>user' }}\n        {%- endif %}\n"
        "        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}\n"
        "        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}\n            {{- '<|im_end|>\n' }}\n"
        "        {%- endif %}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{%- endif %}\n"
    ),
    "qwen 3": (
        "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n"
        "{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n"
        "    {%- if ns.multi_step_tool and message.role == 'user' and not (message.content.startswith('<tool_response>') "
        "and message.content.endswith('</tool_response>')) %}\n        {%- set ns.multi_step_tool = false %}\n"
        "        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- for message in messages %}\n    {%- set content = message.content %}\n"
        "    {%- if message.role == 'assistant' and '</think>' in content %}\n"
        "        {%- set content = content.split('</think>')[-1].lstrip('\n') %}\n    {%- endif %}\n"
        "    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}\n{%- endfor %}\n"
        "{{- ns.last_query_index }}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\n\n</think>\n\n' }}\n    {%- endif %}\n{%- endif %}"
    ),
    "llama 2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
        "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
        "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
        "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "llama 3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
        "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
        "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "llama 3.1": (
        "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n"
        "{%- if not date_string is defined %}\n    {%- set date_string = '26 Jul 2024' %}\n{%- endif %}\n"
        "{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n"
        "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = '' %}\n{%- endif %}\n"
        "{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}\n{%- if tools is not none %}\n"
        "    {{- 'Environment: ipython\n' }}\n{%- endif %}\n{{- 'Today Date: ' + date_string + '\n\n' }}\n"
        "{{- system_message }}\n{{- '<|eot_id|>' }}\n{%- if tools is not none %}\n    {%- for t in tools %}\n"
        "        {{- t | tojson(indent=4) }}\n        {{- '\n\n' }}\n    {%- endfor %}\n{%- endif %}\n"
        "{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or "
        "'tool_calls' in message) %}\n        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
        "message['content'] | trim + '<|eot_id|>' }}\n    {%- elif message.role == 'tool' %}\n"
        "        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}\n"
        "        {%- if message.content is mapping or message.content is iterable %}\n"
        "            {{- message.content | tojson }}\n        {%- else %}\n            {{- message.content }}\n"
        "        {%- endif %}\n        {{- '<|eot_id|>' }}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n{%- endif %}\n"
    ),
    "mistral v0.1": (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ),
    "mistral v0.3": (
        "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content'] %}\n"
        "    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages %}\n{%- endif %}\n"
        "{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n"
        "{%- set user_messages = loop_messages | selectattr('role', 'equalto', 'user') | list %}\n{{- bos_token }}\n"
        "{%- for message in loop_messages %}\n    {%- if message['role'] == 'user' %}\n"
        "        {%- if tools is not none and (message == user_messages[-1]) %}\n            {{- '[AVAILABLE_TOOLS] [' }}\n"
        "            {%- for tool in tools %}\n                {%- set tool = tool.function %}\n"
        '                {{- \'{"type": "function", "function": {\' }}\n'
        "                {%- for key, val in tool.items() if key != 'return' %}\n"
        "                    {%- if val is string %}\n                        {{- '\"' + key + '\": \"' + val + '\"' }}\n"
        "                    {%- else %}\n                        {{- '\"' + key + '\": ' + val|tojson }}\n"
        "                    {%- endif %}\n                    {%- if not loop.last %}\n"
        "                        {{- ', ' }}\n                    {%- endif %}\n                {%- endfor %}\n"
        "                {{- '}}' }}\n                {%- if not loop.last %}\n                    {{- ', ' }}\n"
        "                {%- else %}\n                    {{- ']' }}\n                {%- endif %}\n"
        "            {%- endfor %}\n            {{- '[/AVAILABLE_TOOLS]' }}\n        {%- endif %}\n"
        "        {%- if loop.last and system_message is defined %}\n"
        "            {{- '[INST] ' + system_message + '\n\n' + message['content'] + '[/INST]' }}\n        {%- else %}\n"
        "            {{- '[INST] ' + message['content'] + '[/INST]' }}\n        {%- endif %}\n"
        "    {%- elif message['role'] == 'assistant' %}\n        {{- ' ' + message['content']|trim + eos_token }}\n"
        "    {%- else %}\n        {{- raise_exception('Only user and assistant roles are supported') }}\n"
        "    {%- endif %}\n{%- endfor %}\n"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
        "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    "gemma 3": (
        "{{ bos_token }}\n{%- if messages[0]['role'] == 'system' -%}\n    {%- if messages[0]['content'] is string -%}\n"
        "        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}\n    {%- else -%}\n"
        "        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}\n    {%- endif -%}\n"
        "    {%- set loop_messages = messages[1:] -%}\n{%- else -%}\n    {%- set first_user_prefix = '' -%}\n"
        "    {%- set loop_messages = messages -%}\n{%- endif -%}\n{%- for message in loop_messages -%}\n"
        "    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}\n"
        "    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}\n"
        "    {%- if message['content'] is string -%}\n        {{ message['content'] | trim }}\n"
        "    {%- elif message['content'] is iterable -%}\n        {{ raise_exception('Invalid content type') }}\n"
        "    {%- endif -%}\n    {{ '<end_of_turn>\n' }}\n{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}\n    {{'<start_of_turn>model\n'}}\n{%- endif -%}\n"
    ),
    "phi 3": (
        "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + "
        "'<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    "phi 4": (
        "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + "
        "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + "
        "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}"
        "{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
    ),
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
        "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
        "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
    ),
    "vicuna": (
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% set messages = messages[1:] %}"
        "{% else %}{{ 'A chat between a curious user and an artificial intelligence assistant. ' }}{% endif %}"
        "{% for message in messages %}{{ message['role'] | upper + ': ' + message['content'] | trim }}"
        "{{ eos_token if message['role'] == 'assistant' else ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    "alpaca": (
        "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
        "{% elif message['role'] == 'user' %}{{ '### Instruction:\n' + message['content'] + '\n\n' }}"
        "{% else %}{{ '### Response:\n' + message['content'] + '\n\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
    ),
    "command r": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}"
        "{% set system_message = 'You are Command.' %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% if system_message != false %}"
        "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
        "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% set content = message['content'] %}"
        "{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + "
        "'<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' "
        "+ content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
    ),
    "deepseek v2": (
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
        "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
        "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
        "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    ),
    "deepseek r1": (
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
        "{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}{%- for message in messages %}"
        "{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
        "{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}"
        "{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}"
        "{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}"
        "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
        "{{'<|Assistant|>' + content + eos_token}}{%- endif %}{%- endfor -%}"
        "{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\n'}}{% endif %}"
    ),
    "falcon": (
        "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
        "{{ message['role'] | capitalize + ': ' + message['content'].strip().replace('\r\n', '\n').replace('\n\n', '\n') }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '\n' + 'Assistant:' }}{% endif %}"
    ),
    "granite": (
        "{%- if tools %}\n    {{- '<|start_of_role|>available_tools<|end_of_role|>\n' }}\n    {%- for tool in tools %}\n"
        "    {{- tool | tojson(indent=4) }}\n    {%- if not loop.last %}\n        {{- '\n\n' }}\n    {%- endif %}\n"
        "    {%- endfor %}\n    {{- '<|end_of_text|>\n' }}\n{%- endif %}\n{%- for message in messages %}\n"
        "    {%- if message['role'] in ['system', 'user', 'assistant'] %}\n    {{- '<|start_of_role|>' + message['role'] + "
        "'<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}\n    {%- elif message['role'] == 'tool' %}\n"
        "    {{- '<|start_of_role|>tool_response<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}\n"
        "    {%- endif %}\n    {%- if loop.last and add_generation_prompt %}\n"
        "    {{- '<|start_of_role|>assistant<|end_of_role|>' }}\n    {%- endif %}\n{%- endfor %}"
    ),
    "openchat": (
        "{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + "
        "message['content'] + '<|end_of_turn|>'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}"
    ),
    "olmo": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + "
        "message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n' + message['content'] + "
        "eos_token + '\n' }}{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
    ),
    "baichuan, by groups": (
        "{% for role, group in messages | groupby('role') %}{{ role }}={{ group | map(attribute='content') | join('/') }};"
        "{% endfor %}{{ messages | map(attribute='role') | unique | sort(reverse=true) | join(',') }}"
        "{{ messages | rejectattr('role', 'equalto', 'system') | list | length }}"
        "{% macro turn(text, role='x') -%}<{{ role }}>{{ text | e }}{{ caller() if caller else '' }}{%- endmacro %}"
        "{{ turn(messages[-1].content, role=messages[-1].role) }}{% call turn('a') %}b{% endcall %}"
        "{% filter upper %}end{% endfilter %}{{ '%s-%d' | format('a', 3) }}{{ (messages | first).content | truncate(4) }}"
    ),
}
