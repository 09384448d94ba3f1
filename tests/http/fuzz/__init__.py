"""Requests that nobody would write, made from the OpenAPI document: whatever routes there are, they are asked.

`fuzzer` asks and judges; `stage` sees to it that there is something to ask about; `things` knows what there is, and
`supplies` puts it into requests: what of it is chosen by `choices`, and what `bodies` need besides is there. `findings`
is what is told in the end. `python -m tests.http.fuzz` is the long form.
"""
