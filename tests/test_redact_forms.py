"""Secrets in the many forms in which programs write them are found, and text that only sounds like it is left alone."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

import pytest

from holdfast.probe.holdfast_probe.secret_shapes import OTHERS, TOKENS
from holdfast.storage.redact import Redactor

X, Y, Z = "ZqKw83mdLp20xs", "Rt5vBn81QcWe7u", "pLm4Xz09TyHg6k"
HEX = "0123456789abcdef" * 4
MIXED = "a1B2c3D4e5" * 9


@pytest.mark.parametrize(
    "argv",
    [
        ["env", f"PGPASSWORD={X}", "python", "t.py"],
        ["bash", "-c", f"PGPASSWORD='{X}' SMTPPASSWORD={Y} python t.py"],
        ["t.py", "--dbpass", X, "--mysqlpwd", Y, f"AUTHTOKEN={Z}"],
        ["t.py", f"apisecret={X}", f"DB_PASS={Y}", f"RABBITMQ_DEFAULT_PASS={Z}"],
        ["t.py", "--api-keys", X, Y, Z, "--lr", "1"],
        ["t.py", "--tokens", X, f"--access-keys={Y}", "--passwords", Z],
        ["bash", "-c", f"t.py --api-keys {X} {Y} '{Z}' --lr 1"],
        ["t.py", f'--config={{"password": "{X}\\"{Y}", "lr": 1}}'],
        ["python", "-c", f"import os; os.environ['HF_TOKEN']='{X}'; config[\"password\"] = \"{Y}\""],
        ["python", "-c", f"dict(password='{X}', api_keys=['{Y}', '{Z}'])"],
        ["python", "-c", f"password: str = '{X}'; os.environ.setdefault('API_KEY', b'{Y}')"],
        ["t.py", f"https://b.s3.amazonaws.com/t?X-Amz-Signature={X}&X-Goog-Signature={Y}&Signature={Z}"],
        ["t.py", f"--header=Cookie: sessionid={X}; csrftoken={Y}"],
        ["bash", "-c", f"curl -H 'Cookie: sessionid={X}; theme={Y}' -b sid={Z} https://h/"],
        ["t.py", f"https://{X}Kq7:@api.example.com/x", f"https://{Y}2vB8@h/"],
        ["t.py", "/password:" + X, f"--password:{Y}", f"/pwd={Z}"],
        ["t.py", f"postgresql://u:a@b/{X}@host/db", f"https://u:pa/{Y}@host/x"],
        ["curl", "-u", f"bob:{X}", "-sU", f"bob:{Y}", f"-ubob:{Z}", "https://h/"],
        ["bash", "-c", f"curl -su bob:{X} https://h/ && sshpass -p {Y} ssh h; mysql -u root -p{Z} db"],
        ["bash", "-c", f"redis-cli -a '{X}' ping; docker login -u bob -p {Y} reg; /usr/bin/wget --password {Z} u"],
        ["bash", "-c", f"wandb login {X}{Y}; ldapsearch -x -w {Z} -b dc=x"],
        ["openssl", "rsa", "-passin", f"pass:{X}", "-in", "k.pem"],
        ["t.py", "--smtp-pw", X, f"wifi_psk={Y}"],
        [
            "bash",
            "-c",
            f"echo {X} | docker login --password-stdin; read TOKEN <<< '{Y}'; printf '{Z}' | gh auth login --with-token",
        ],
        ["aws", "configure", "set", "aws_secret_access_key", X],
        ["sqlplus", "-S", f"scott/{X}@orcl"],
        ["python", "-c", f"h.login('{X}9Kz3'); auth=('bob', '{Y}'); HTTPBasicAuth('bob', '{Z}')"],
        ["srun", f"--export=ALL,WANDB_API_KEY={X},HF_TOKEN={Y}", "python", "t.py"],
        ["bash", "-c", f"t.py --token \\\n {X} --password my\\ {Y}"],
    ],
    ids=lambda argv: " ".join(argv)[:50],
)
def test_secret_in_a_command(argv):
    """Names written as one word, several values, quotes in quotes, code, headers, addresses, options of known programs."""
    kept = "\n".join(Redactor().command(argv))
    assert not [secret for secret in (X, Y, Z) if secret in kept]
    assert "***" in kept


@pytest.mark.parametrize(
    "printed",
    [
        f"reading netrc\nmachine api.wandb.ai login user password {X}\nfailed",
        f"machine h\n  login u\n  password {X}",
        f"wrong password {X}, and the api_key is {Y}",
        f"[('X-Api-Key', '{X}'), ('Authorization', 'Basic {Y}'), [\"token\", \"{Z}9aK\"]]",
        f"Command '['t.py', '--api-keys', '{X}', '{Y}', '--lr', '1', '--password=two {Z}']' failed",
        f"{{'name': 'API_KEY', 'value': '{X}'}} name: DB_PASSWORD\n  value: {Y}",
        f'{{\n  "password":\n    "{X}"\n}}',
        f"password: |\n  {X}\nsecret_key: >-\n    {Y}\n",
        f"<conf><password>{X}</password><api_key><![CDATA[{Y}]]></api_key></conf>",
        f'<add key="ApiKey" value="{X}"/><user name="bob" password="{Y}"/>',
        f"Set-Cookie: sid={X}; Path=/; HttpOnly\nheaders={{'Cookie': 'a={Y}; b={Z}'}}",
        f"'password' => '{X}', password := '{Y}', if password == '{Z}':",
        f"| hub_token | {X} |\n\u2502 api_key \u2502 {Y} \u2502\napi_key        {Z}",
        f"password='{X} and the line is cut",
        f"api_keys: ['{X}', '{Y}'] db_passwords=({Z})",
        f"Authorization: Digest username=bob, response={X}\nAuthorization: AWS4-HMAC-SHA256 Credential=a, Signature={Y}",
        f"API key: {X}, client secret = {Y}",
        f"passphrase: correct {X} battery {Y}",
        f"+ curl -u bob:{X} https://h/\n+ mysql -p{Y} db",
        f"Config(db=DB(user='u', password=SecretStr('{X}')))",
        f"<Cookie sessionid={X} for h/>\nsecret access key [None]: {Y}",
        f"args:\n  - --api-token\n  - {X}\n  - --lr",
        f"token: {X}",
        f"user[password]={X}&next=1 password%3D{Y}",
        f"token=b'{X}4vK' secret_key=r\"{Y}\"",
    ],
)
def test_secret_in_what_is_printed(printed):
    """Pairs, tables, tags, headers, values on the next line and lines that were cut, in last words."""
    kept = "\n".join(Redactor().lines(printed.split("\n")))
    assert not [secret for secret in (X, Y, Z) if secret in kept]
    assert "***" in kept


LOOKS = {
    "Hugging Face": "hf_" + MIXED[:34], "OpenAI, Anthropic, OpenRouter and DeepSeek": "sk-ant-api03-" + MIXED[:80], "Groq": "gsk_" + MIXED[:52],
    "xAI": "xai-" + MIXED[:80], "Perplexity": "pplx-" + MIXED[:48], "NVIDIA": "nvapi-" + MIXED[:64], "Replicate": "r8_" + MIXED[:37],
    "LangSmith": "lsv2_pt_" + HEX[:32] + "_" + HEX[:10], "Weights & Biases (new keys)": "wandb_v1_" + MIXED[:60], "Pinecone": "pcsk_" + MIXED[:60],
    "GitHub": "github_pat_" + MIXED[:50], "GitLab": "glpat-" + MIXED[:20], "Atlassian": "ATATT3" + MIXED[:60], "AWS": "AKIA" + "A1B2" * 4,
    "Google": "GOCSPX-" + MIXED[:28], "Azure client secret": "a1B8Q~" + MIXED[:34], "Alibaba": "LTAI" + MIXED[:20],
    "DigitalOcean": "dop_v1_" + HEX, "Databricks": "dapi" + HEX[:32], "Slack": "xoxb-1234567890-" + MIXED[:24], "Telegram bot": "123456789:AA" + MIXED[:33],
    "Discord bot": "M" + MIXED[:25] + "." + MIXED[:6] + "." + MIXED[:38], "Twilio": "SK" + HEX[:32], "SendGrid": "SG." + MIXED[:22] + "." + MIXED[:43],
    "Mailgun": "key-" + HEX[:32], "Brevo": "xkeysib-" + HEX + "-" + MIXED[:16], "Stripe": "rk_live_" + MIXED[:24], "Square": "sq0csp-" + MIXED[:43],
    "Shopify": "shpat_" + HEX[:32], "npm": "npm_" + MIXED[:36], "PyPI": "pypi-AgEIcHlwaS5vcmc" + MIXED[:60], "RubyGems": "rubygems_" + HEX[:48],
    "Docker Hub": "dckr_pat_" + MIXED[:27], "Doppler": "dp.pt." + MIXED[:43], "HashiCorp Vault": "hvs." + MIXED[:80],
    "Terraform Cloud": MIXED[:14] + ".atlasv1." + MIXED[:67], "Pulumi": "pul-" + HEX[:40], "Grafana": "glsa_" + MIXED[:32] + "_" + HEX[:8],
    "Sentry": "sntrys_" + MIXED[:60], "New Relic": "NRAK-" + "A1B" * 9, "Postman": "PMAK-" + HEX[:24] + "-" + HEX[:34], "Linear": "lin_api_" + MIXED[:40],
    "Notion": "ntn_" + MIXED[:46], "Airtable": "pat" + MIXED[:14] + "." + HEX, "Figma": "figd_" + MIXED[:40], "Supabase": "sbp_" + HEX[:40],
    "PlanetScale": "pscale_tkn_" + MIXED[:43], "Fly.io": "fm2_" + MIXED[:80], "age": "AGE-SECRET-KEY-1" + "A1B2C" * 12,
    "JSON web tokens": "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl", "Slack webhooks": "https://hooks.slack.com/services/T0AB/B0AB/" + MIXED[:24],
    "Discord webhooks": "https://discord.com/api/webhooks/1234567890123456/" + MIXED[:60],
    "private keys": "-----BEGIN PGP PRIVATE KEY BLOCK-----" + MIXED + "-----END PGP PRIVATE KEY BLOCK-----",
}  # fmt: skip


@pytest.mark.parametrize("owner", [owner for owner, _ in (*TOKENS, *OTHERS)])
def test_shape(owner):
    """Each that the record's page lists is replaced in a sentence, and the page lists each."""
    kept = Redactor().text(f"connect {LOOKS[owner]} refused")
    assert kept.startswith("connect ")
    assert kept.endswith("*** refused")
    page = (Path(__file__).parents[1] / "docs" / "run_folder.md").read_text()
    assert re.sub(r"\s+", " ", owner) in re.sub(r"\s+", " ", page)


HARMLESS = [
    "login('bob') failed, auth=('bob', password)",
    "pw_conv=3x3 pw: pointwise psk modulation",
    "echo hello | sort",
    "- --tokenizer",
    "- bert-base-uncased",
    "password=getpass.getpass('Password: ')",
    "token: resnet50_a1 key: layer3conv2d key: bfloat16",
    "Namespace(hub_token=None, lr=0.1)",
    "error: argument --api-key: expected one argument",
    "usage: t.py [-h] [--api-key API_KEY] [--token TOKEN] [--lr LR]",
    "the following arguments are required: --api-key, --lr",
    "key: model.layers.0.self_attn.q_proj.weight",
    "size mismatch for key: backbone.layer4.2.conv3.weight",
    "    login(password=args.password, token=self.token)",
    '    token = os.environ["HF_TOKEN"]',
    "def login(password: str, token: Optional[str] = None):",
    "Password: ",
    "password is incorrect",
    "password mismatch for user bob",
    "grep: /etc/passwd: No such file or directory",
    "https://host:8080/@user/notebook",
    "https://medium.com/@user/post-1a2b3c4d",
    "git@github.com:org/repo.git",
    "docker://pytorch:2.1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "cookie: none",
    "cookie consent dialog",
    "next_token_loss=2.31 token_accuracy=0.93",
    "subtoken=17 subtokens: 9 multitoken=True",
    "loss 0.3 pass 3 of 4",
    "first_pass=done forward_pass: 12.3ms bypass=layer",
    "docker run -p 8080:80 -u 1000:1000 img",
    "curl -o out.zip https://h/a.zip",
    "mysql -h db -P 3306 -u root",
    "tokens: torch.Size([2, 8, 64])",
    "tokens=[101, 2023, 102]",
    "max_tokens: 4096, total_tokens: 1000000",
    "['token', 'label', 'split']",
    "columns: ('username', 'password')",
    "key_cache: torch.Size([1,32,128,128]) dtype=torch.bfloat16",
    "missing_keys=['a.b', 'c.d'] unexpected_keys=[]",
    "All keys matched successfully",
    "<key>loss</key>",
    '{"name": "lr", "value": "0.01"}',
    '{"name": "tokenizer", "value": "bert-base-uncased"}',
    "signature: (Tensor x, int dim=1) -> Tensor",
    "Signature(parameters=[x, y])",
    "author: bob, authority: root",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "sha256:0123456789abcdef0123456789abcdef",
    "sk-learn-compatible-estimators-and-more-things",
    "key-value-store-of-the-best-kind",
    "secretary=jane compass=north",
    "monkey: banana hotkey=ctrl",
    "SG.layer.weight",
    "token | count",
    "the token is invalid",
    "password required",
    "api_key not set",
    "API key missing; set WANDB_API_KEY",
    "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
    "wandb login --relogin",
    "HF_TOKEN is not set, set HF_TOKEN",
    "token_type_ids=[0, 1] cls_token=<cls>",
    "keys=['model', 'ema']",
    "Loading checkpoint /data/tokens/run12/shard_0017.bin",
    "postgres://localhost:5432/db",
    "redis://cache:6379/0",
    "s3://bucket/keys/epoch10.pt",
    "mailto:user@example.com",
    "http://localhost:6006/#scalars",
    "wrote /home/u/.ssh/keys/readme_9.md",
    "RuntimeError: key 'model.0.conv.weight' not found",
    "KeyError: 'password'",
    "TypeError: __init__() got an unexpected keyword argument 'token'",
    "TypeError: login() missing 1 required positional argument: 'password'",
    "if key == 'loss': best = 0.5",
    "for key, value in items: print(key, value)",
    "auth_type=none, auth: disabled",
    "query_key_value.weight 0.123",
    "attn.key.bias | torch.float32",
    "encoder.key: 768",
    "authentication failed after 30s",
    '"tokens_per_second": 1234.5',
    "credential_process = /usr/bin/x",
    "pass@1: 0.53",
    "basic block: resnet50",
    "bearer of bad news: loss123 diverged",
]


def test_harmless_text_stays():
    """Line by line, and as lines that belong together: a masked word in a message is a lost fact."""
    assert [line for line in HARMLESS if Redactor().text(line) != line] == []
    assert Redactor().lines(HARMLESS) == HARMLESS


@pytest.mark.parametrize(
    "argv",
    [
        ["t.py", "--tokens", "300B", "--max-tokens", "512", "num_tokens=1000000", "--tokens", "1000000"],
        ["t.py", "keys=a,b", "--subtoken", "x", "--multitoken=y", "--hotkey", "F5", "--bypass", "z"],
        ["docker", "run", "-p", "8080:80", "-u", "1000:1000", "-v", "/secrets:/run/secrets", "img"],
        ["mysql", "-h", "db", "-P", "3306", "-u", "root", "-p"],
        ["curl", "-u", "bob", "-o", "x:y", "https://host:8080/@user"],
        ["wandb", "login", "--relogin"],
        ["bash", "-c", "cat keys | sort && zip -r a.zip data; t.py --next-token-loss ce --pad-token-id 50256"],
    ],
    ids=lambda argv: " ".join(argv)[:50],
)
def test_harmless_command_stays(argv):
    """Numbers of tokens, ports, mounts and options of programs that ask for a password."""
    assert Redactor().command(argv) == argv


def test_quote_that_is_not_closed_ends_with_its_line():
    """An apostrophe in a printed line does not take the lines after it with it, and values of a list are known one by one."""
    lines = ["password='it", "loss 0.1", "it's done", f"api_keys: ['{X}',", f" '{Y}']", f"used {X}"]
    assert Redactor().lines(lines) == ["password='***", "loss 0.1", "it's done", "api_keys: ***", "used ***"]


def test_value_is_known_in_every_form_in_which_it_is_printed():
    """As a list, as JSON and as a part of an address show it."""
    secret = f"{X}\"\\\u00fc'{Y} /"
    redactor = Redactor([["t.py", "--password", secret]])
    for printed in (repr(secret), json.dumps(secret), urllib.parse.quote(secret, safe=""), secret):
        assert X not in redactor.text(f"got {printed} here")
        assert Y not in redactor.text(f"got {printed} here")


@pytest.mark.parametrize(
    "line",
    [
        rf"send: b'GET / HTTP/1.1\r\nAuthorization: Bearer {X}\r\nX-Api-Key: {Y}\r\n'",
        rf"b'X-Auth-Token: {X}\r\nCookie: sid={Y}; a={Z}\r\nHost: h\r\n'",
        f"password: !!str {X}",
        f"api_key: !vault {X}",
        f"access_token: &tok {X}",
        f'db_password: &pw "{X}"',
        f'{{"identitytoken": "{X}"}}',
    ],
)
def test_a_value_behind_another_header_a_tag_or_an_anchor(line):
    """Headers are printed as bytes, in one line; YAML writes a tag or an anchor before a value."""
    redacted = Redactor().text(line)
    assert not [secret for secret in (X, Y, Z) if secret in redacted], redacted


def test_brackets_make_no_code_of_a_variable_or_of_an_address():
    """`TOKEN=f(x)` may be code, but not as a variable of a shell, and not in an address."""
    for word in ("env TOKEN=aB)cdEf1 python t.py", "https://example.org/?token=aB(cdEf"):
        assert "cdEf" not in Redactor().command([word])[0]
