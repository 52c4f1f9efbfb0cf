# From a clone to an installed llama-server on Windows: the counterpart of install.sh.
# NOT RUN SO FAR: it was written by PowerShell's and pip's documentation, and no machine has run it.
#
#   powershell -ExecutionPolicy Bypass -File install.ps1 [ARGUMENT OF tsuku-llm install...]
#
# The environment is made in .venv\. The folder of its tsuku-llm.exe holds pip and Python as well,
# so the program is called by its path, and a small tsuku-llm.cmd in
# %LOCALAPPDATA%\Programs\tsuku-llm calls it by its name. $env:PYTHON names another Python.
# A later run updates the program. It leaves a build that is active as it is, unless it is given
# arguments: to update the build is another command.
$ErrorActionPreference = 'Stop'
Set-Location -LiteralPath $PSScriptRoot

$python = if ($env:PYTHON) { $env:PYTHON } else { 'python' }
if (-not (Get-Command $python -ErrorAction SilentlyContinue)) {
    Write-Error "there is no $python on the PATH: install Python 3.10 or newer, or set PYTHON"
}

# PowerShell goes on after a program that fails: stop at the first one.
function Invoke-Program([string] $Program, [string[]] $Words) {
    & $Program @Words
    if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
}

# setuptools would put modules that were since removed into the wheel.
if (Test-Path -LiteralPath build) { Remove-Item -LiteralPath build -Recurse -Force }
$own = Join-Path $PSScriptRoot '.venv\Scripts\python.exe'
$works = $false
if (Test-Path -LiteralPath $own) {
    & $own -m pip --version *> $null
    $works = $LASTEXITCODE -eq 0
}
if (-not $works) {
    Write-Host 'install.ps1: making a Python environment in .venv\'
    Invoke-Program $python @('-m', 'venv', '--clear', '.venv')
}

# Every dependency, and what builds the package, is locked with its digests (ci/lock).
$pip = @('-m', 'pip', 'install', '--quiet', '--disable-pip-version-check')
Write-Host 'install.ps1: installing the Python packages that the program needs into .venv\'
Invoke-Program $own ($pip + @('--no-deps', '--require-hashes', '-r', 'installer/tsuku_llm/locked.txt'))
Write-Host 'install.ps1: installing the program into .venv\'
Invoke-Program $own ($pip + @('--no-deps', '--no-build-isolation', '.'))

$program = Join-Path $PSScriptRoot '.venv\Scripts\tsuku-llm.exe'
$active = $false
if ($args.Count -eq 0) {
    # Only a first run installs a build: a later one may meet a build that somebody chose, or compiled.
    $listed = & $program list --json
    if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
    $active = [bool](($listed | ConvertFrom-Json).data.versions | Where-Object { $_.active })
}
if ($active) {
    Write-Host 'the program is installed, and the active build is the one that it was'
    Write-Host "to update that as well: & '$program' update"
} else {
    Invoke-Program $program (@('install', '--yes') + $args)
}

# What another program put there stays: a file of ours has this mark.
$mark = '@rem made by install.ps1 of tsuku-llm'
$folder = Join-Path $env:LOCALAPPDATA 'Programs\tsuku-llm'
$caller = Join-Path $folder 'tsuku-llm.cmd'
if ((Test-Path -LiteralPath $caller) -and ((Get-Content -LiteralPath $caller -TotalCount 1) -ne $mark)) {
    Write-Host "$caller is not from here, so it stays as it is"
    Write-Host "tsuku-llm is $program"
    exit 0
}
New-Item -ItemType Directory -Force -Path $folder | Out-Null
# A percent sign in a path is doubled in a batch file.
Set-Content -LiteralPath $caller -Encoding Oem -Value @($mark, "@`"$($program.Replace('%', '%%'))`" %*")
if (($env:Path -split ';') -notcontains $folder) {
    Write-Host 'to call it by its name, tsuku-llm, run this and open a new terminal:'
    Write-Host "  [Environment]::SetEnvironmentVariable('Path', [Environment]::GetEnvironmentVariable('Path', 'User') + ';$folder', 'User')"
    Write-Host "until then it is: & '$program'"
}
exit 0
